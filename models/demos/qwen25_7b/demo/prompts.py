"""The prompts of a demo run, from the command line or a JSON file."""
import json
from pathlib import Path
from typing import Optional

from models.common.errors import UserError

DEFAULT_PROMPT = "What is the capital of France?"


def read_prompts(prompt: Optional[str], file: Optional[Path], batch_size: Optional[int]) -> list[str]:
    """One prompt a user: `prompt`, or those of `file`, or the default; repeated or cut to batch_size where given.

    file: a JSON list whose items are strings, or objects with a "prompt".
    """
    prompts = _from_file(file) if file else [DEFAULT_PROMPT if prompt is None else prompt]
    if batch_size is not None:
        if not 1 <= batch_size <= 32:
            raise UserError(f"--batch-size must be 1 to 32, got {batch_size}")
        prompts = [prompts[i % len(prompts)] for i in range(batch_size)]
    if len(prompts) > 32:
        raise UserError(f"{file} has {len(prompts)} prompts, a batch is at most 32: cut it with --batch-size 32")
    for i, text in enumerate(prompts):
        if not text.strip():
            raise UserError(f"prompt {i} is empty: a prompt needs at least one character")
    return prompts


def _from_file(file: Path) -> list[str]:
    try:
        items = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--prompts {file}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"--prompts {file} is not JSON: {error}") from error
    if not isinstance(items, list) or not items:
        raise UserError(f"--prompts {file}: expected a list of prompts, got {type(items).__name__}")
    prompts = [item.get("prompt") if isinstance(item, dict) else item for item in items]
    for i, item in enumerate(prompts):
        if not isinstance(item, str):
            raise UserError(f'--prompts {file}: item {i} must be a string or an object with a "prompt", got {items[i]!r}')
    return prompts

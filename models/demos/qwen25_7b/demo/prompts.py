"""The prompts of a demo run, from the command line or a JSON file."""

import json
from pathlib import Path
from typing import Optional

from models.common.errors import UserError

DEFAULT_PROMPT = "What is the capital of France?"


def read_prompts(prompt: Optional[str], file: Optional[Path], users: Optional[int], max_users: int) -> list[str]:
    """One prompt a user: `prompt`, or those of `file`, or the default; repeated or cut to `users` where given.

    file: a JSON list whose items are strings, or objects with a "prompt".
    """
    prompts = _from_file(file) if file else [DEFAULT_PROMPT if prompt is None else prompt]
    if users is not None:
        if not 1 <= users <= max_users:
            raise UserError(f"--batch-size must be 1 to {max_users} (32 a replica), got {users}")
        prompts = [prompts[i % len(prompts)] for i in range(users)]
    if len(prompts) > max_users:
        raise UserError(f"{file} has {len(prompts)} prompts, {max_users} fit: cut it with --batch-size {max_users}")
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
            raise UserError(
                f'--prompts {file}: item {i} must be a string or an object with a "prompt", got {items[i]!r}'
            )
    return prompts

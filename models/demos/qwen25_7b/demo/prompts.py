"""The prompts of a demo run, from the command line or from a file."""

from argparse import Namespace
from pathlib import Path

from ..errors import UserError, shown
from ..files import read_json, read_text

DEFAULT_PROMPT = "What is the capital of France?"


def read_prompts(args: Namespace) -> list[str]:
    """One prompt for each user, from --prompt, --prompt-file, --prompts or the default.

    --batch-size repeats them or cuts them to its number. UserError names the option, the file or the
    prompt that cannot be.
    """
    if args.prompts is not None:
        prompts = _from_json(args.prompts)
    elif args.prompt_file is not None:
        prompts = [read_text(args.prompt_file, "--prompt-file")]
    else:
        prompts = [DEFAULT_PROMPT if args.prompt is None else args.prompt]
    for i, prompt in enumerate(prompts):
        if not prompt.strip():
            raise UserError(f"prompt {i} is empty: a prompt needs at least one character")
    users = len(prompts) if args.batch_size is None else args.batch_size
    return [prompts[i % len(prompts)] for i in range(users)]


def _from_json(file: Path) -> list[str]:
    items = read_json(file, "--prompts")
    if not isinstance(items, list) or not items:
        raise UserError(f"--prompts {file}: expected a list of prompts, got {shown(items)}")
    prompts = [item.get("prompt") if isinstance(item, dict) else item for item in items]
    for i, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            raise UserError(
                f'--prompts {file}: item {i} must be a string or an object with a "prompt", '
                f"got {shown(items[i])}"
            )
    return prompts

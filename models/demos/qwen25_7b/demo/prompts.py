"""The prompts of a demo run, from the command line or from a file."""

from argparse import Namespace
from pathlib import Path

from ..errors import UserError, shown
from ..files import read_json, read_json_lines, read_text

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
    """The prompts of a JSON list or of JSON lines."""
    text = read_text(file, "--prompts")
    if text.lstrip().startswith("["):
        items = read_json(file, "--prompts")
    else:
        items = [item for _, item in read_json_lines(text, f"--prompts {file}")]
    if not items:
        raise UserError(f"--prompts {file}: no prompts; expected a JSON list or JSON lines")
    prompts = [item.get("prompt") if isinstance(item, dict) else item for item in items]
    for i, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            raise UserError(
                f'--prompts {file}: item {i} must be a string or an object with a "prompt", got {shown(items[i])}'
            )
    return prompts

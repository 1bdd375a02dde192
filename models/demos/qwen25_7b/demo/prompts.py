"""The prompts of a demo run, from the command line or from a file."""

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

from models.common.errors import UserError, check_text, shown
from models.common.json_file import read_json
from models.common.user_file import MIB, read_text

DEFAULT_PROMPT = "What is the capital of France?"
LIMIT = 64 * MIB  # of a file of prompts
MOST_PROMPTS = 100_000  # in a run


def read_prompts(args: Namespace) -> list[str]:
    """One prompt for each user, from --prompt, --prompt-file, --prompts or the default.

    --batch-size repeats them or cuts them to its number. UserError names the option, the file or the
    prompt that cannot be.
    """
    if args.prompts is not None:
        prompts = _from_json(args.prompts)
    elif args.prompt_file is not None:
        prompts = [read_text(args.prompt_file, LIMIT, "--prompt-file", pipe=True)]
    else:
        prompts = [
            DEFAULT_PROMPT if args.prompt is None else from_argument("--prompt", args.prompt)
        ]
    for i, prompt in enumerate(prompts):
        check_text(f"prompt {i}", prompt)
        if not prompt.strip():
            raise UserError(f"prompt {i} is empty: a prompt needs at least one character")
    if args.batch_size is None:
        return prompts
    if not 1 <= args.batch_size <= MOST_PROMPTS:
        raise UserError(f"--batch-size must be 1 to {MOST_PROMPTS} users, got {args.batch_size}")
    return [prompts[i % len(prompts)] for i in range(args.batch_size)]


def from_argument(option: str, value: str) -> str:
    """The text of an argument, also where the locale's encoding is not UTF-8.

    Python hides bytes that the locale does not know in surrogates.
    """
    try:
        check_text(option, value)
        return value
    except UserError:
        pass
    try:
        return os.fsencode(value).decode("utf-8")
    except UnicodeError as error:
        raise UserError(
            f"{option} is not UTF-8: {error.reason} at place {error.start}; give it in UTF-8, or "
            "put the prompt into a file (--prompts)"
        ) from error


def _from_json(file: Path) -> list[str]:
    items = read_json(file, "--prompts", limit=LIMIT, pipe=True)
    if not isinstance(items, list):
        raise UserError(f"--prompts {file}: expected a list of prompts, got {_kind(items)}")
    if not items:
        raise UserError(f"--prompts {file}: holds no prompts; give at least one in its list")
    if len(items) > MOST_PROMPTS:
        raise UserError(
            f"--prompts {file}: holds {len(items)} prompts, the most is {MOST_PROMPTS}; divide it"
        )
    prompts = [item.get("prompt") if isinstance(item, dict) else item for item in items]
    for i, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            raise UserError(
                f'--prompts {file}: item {i} must be a string or an object with a "prompt", '
                f"got {shown(items[i])}"
            )
    return prompts


def _kind(value: Any) -> str:
    return {dict: "an object", str: "a string", bool: "true or false", type(None): "null"}.get(
        type(value), "a number"
    )

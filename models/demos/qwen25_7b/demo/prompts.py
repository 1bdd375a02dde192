"""The prompts of a demo run, from the command line or a JSON file."""

import os
from pathlib import Path
from typing import Optional

from models.common.errors import UserError
from models.common.json_file import read_json

DEFAULT_PROMPT = "What is the capital of France?"


def read_prompts(
    prompt: Optional[str], prompt_file: Optional[Path], file: Optional[Path], users: Optional[int]
) -> list[str]:
    """One prompt a user: `prompt`, or all of prompt_file, or those of `file`, or the default; repeated or cut to `users`.

    file: a JSON list whose items are strings, or objects with a "prompt".
    """
    if file is not None:
        prompts = _from_file(file)
    elif prompt_file is not None:
        prompts = [_whole(prompt_file)]
    else:
        prompts = [DEFAULT_PROMPT if prompt is None else from_argument("--prompt", prompt)]
    if users is not None:
        if users < 1:
            raise UserError(f"--batch-size must be 1 user or more, got {users}")
        prompts = [prompts[i % len(prompts)] for i in range(users)]
    for i, text in enumerate(prompts):
        if not text.strip():
            raise UserError(f"prompt {i} is empty: a prompt needs at least one character")
        if (place := _half_character(text)) is not None:
            raise UserError(f"prompt {i} is not text: character {place} is {text[place]!r}, half of a surrogate pair")
    return prompts


def _half_character(text: str) -> Optional[int]:
    """Where the first half of a surrogate pair is, which is no character: JSON can write it, UTF-8 cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return error.start
    return None


def from_argument(option: str, value: str) -> str:
    """Python hides in surrogates what the locale's encoding does not have, such as all of UTF-8 beyond ASCII in LC_ALL=C."""
    if _half_character(value) is None:
        return value
    try:
        return os.fsencode(value).decode("utf-8")
    except UnicodeError as error:
        raise UserError(
            f"{option} is not UTF-8: {error.reason} at place {error.start}; give it in UTF-8, or a prompt in a file (--prompts)"
        ) from error


def _whole(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"--prompt-file {file}: {error.strerror}") from error
    except UnicodeError as error:
        raise UserError(f"--prompt-file {file} is not UTF-8: {error.reason} at byte {error.start}") from error


def _from_file(file: Path) -> list[str]:
    try:
        items = read_json(file)
    except OSError as error:
        raise UserError(f"--prompts {file}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"--prompts {file} is not JSON: {error}") from error
    if not isinstance(items, list):
        raise UserError(f"--prompts {file}: expected a list of prompts, got {type(items).__name__}")
    if not items:
        raise UserError(f"--prompts {file}: holds no prompts: it needs at least one in its list")
    prompts = [item.get("prompt") if isinstance(item, dict) else item for item in items]
    for i, item in enumerate(prompts):
        if not isinstance(item, str):
            raise UserError(
                f'--prompts {file}: item {i} must be a string or an object with a "prompt", got {items[i]!r}'
            )
    return prompts

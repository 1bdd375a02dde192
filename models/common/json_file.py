"""Read JSON that a user or another program wrote. One set of limits holds for every file."""

import json
from pathlib import Path
from typing import Any

from models.common.user_file import MIB, FileError, read_bytes

LIMIT = 64 * MIB  # a tokenizer has 11 MB
DEPTH = 100  # of nested lists and objects; a checkpoint's files have fewer than 10


def read_json(file: str | Path, option: str = "", *, limit: int = LIMIT, pipe: bool = False) -> Any:
    """Return the value in a JSON file.

    limit: bytes. option: the command line's name for the file, for messages. pipe: also accept a pipe.
    FileError: the file cannot be read, or its content is not JSON within the limits of `parse_json`.
    """
    content = read_bytes(file, limit, option, pipe=pipe)
    try:
        return parse_json(content)
    except ValueError as error:
        raise FileError(f"{option} {file}: not JSON ({error})".lstrip()) from error


def parse_json(content: str | bytes) -> Any:
    """Return the value of a JSON text in UTF-8.

    ValueError: it is not JSON, is nested deeper than DEPTH, or has an integer that no float can hold.
    """
    text = content.decode("utf-8") if isinstance(content, bytes) else content
    try:
        value = json.loads(text, parse_int=_integer)
    except RecursionError:
        raise ValueError(f"nested deeper than {DEPTH} levels") from None
    _check_depth(value)
    return value


def _integer(digits: str) -> int:
    try:
        value = int(digits)
        float(value)
    except (OverflowError, ValueError):  # ValueError: more digits than Python converts
        raise ValueError(f"an integer of {len(digits)} digits is too large") from None
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEPTH + 1):
        level = [
            item
            for parent in level
            if isinstance(parent, (list, dict))
            for item in (parent.values() if isinstance(parent, dict) else parent)
        ]
        if not level:
            return
    raise ValueError(f"nested deeper than {DEPTH} levels")

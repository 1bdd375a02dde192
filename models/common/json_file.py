"""JSON that somebody else wrote: whatever is wrong with it is a ValueError."""

import json
from pathlib import Path
from typing import Any

MOST_BYTES = 256 << 20  # a tokenizer has some 10 MB; without a bound /dev/zero would fill the memory


def read_json(file: Path) -> Any:
    """OSError: not there or not readable. ValueError: what is there is not JSON in UTF-8, or too much of it."""
    with open(file, "rb") as stream:
        content = stream.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"longer than {MOST_BYTES >> 20} MiB")
    return parse_json(content)


def parse_json(content: bytes) -> Any:
    """ValueError: not JSON in UTF-8."""
    try:
        return json.loads(content.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None

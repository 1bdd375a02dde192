"""The lines of the program that are running, for errors and reports. It is imported after ttnn."""

import contextlib
import functools
import sys
import threading
from pathlib import Path

import torch
import ttnn

# Files whose frames are not the program's.
_LIBRARIES = (
    "<",
    *(f"{Path(p).parent}/" for p in (__file__, ttnn.__file__, torch.__file__)),
    *(module.__file__ for module in (contextlib, functools, threading)),
)


def lines(count: int) -> list[tuple[str, int]]:
    """File and number of the lines of the program that are running, the innermost first."""
    frame, found = sys._getframe(1), []
    while frame is not None and len(found) < count:
        file = frame.f_code.co_filename
        if not file.startswith(_LIBRARIES):
            found.append((file, frame.f_lineno))
        frame = frame.f_back
    return found


def aligned(table: list[tuple[str, ...]]) -> list[str]:
    """The rows of a table as lines of text."""
    widths = [max(map(len, column)) for column in zip(*table)]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in table]


def place(file: str, line: int) -> str:
    path = Path(file)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{line}"

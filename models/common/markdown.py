"""Markdown tables."""

from contextlib import contextmanager
from typing import Callable, Iterable, Iterator, Sequence

from models.common.interrupt import shielded
from models.common.terminal import say


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]], *, aligned: bool = False) -> str:
    """A table, one line a row. aligned: with columns of equal width, for a table that fits a terminal."""
    lines = [header, ("---",) * len(header), *rows]
    if aligned:
        widths = [max(map(len, column)) for column in zip(*lines)]
        lines = [[cell.ljust(width) for cell, width in zip(line, widths)] for line in lines]
        lines[1] = ["-" * width for width in widths]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@contextmanager
def table_at_end(
    header: Sequence[str], rows: Callable[[], Sequence[Sequence[str]]]
) -> Iterator[None]:
    """Print the aligned table of `rows()` after the block, unless it is empty.

    Also after an error or an interrupt: a row may have taken minutes.
    """
    try:
        yield
    finally:
        with shielded():
            if done := rows():
                say(markdown(header, done, aligned=True))

"""Markdown tables."""

from typing import Iterable, Sequence


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]], *, aligned: bool = False) -> str:
    """A table, one line a row. aligned: with columns of equal width, for a table that fits a terminal."""
    lines = [header, ("---",) * len(header), *rows]
    if aligned:
        widths = [max(map(len, column)) for column in zip(*lines)]
        lines = [[cell.ljust(width) for cell, width in zip(line, widths)] for line in lines]
        lines[1] = ["-" * width for width in widths]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

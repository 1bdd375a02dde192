"""The choice between torch's sums of matrix products with a float32 dest and the matrix engine's own."""

from contextlib import contextmanager
from typing import Iterator

from golden_mesh.arithmetic.plain import is_plain
from golden_mesh.errors import GoldenMeshError

SUMS = ("default", "exact")
_sums = "default"


def sum_as(sums: str) -> None:
    """Choose the sums of this process. "exact": as the matrix engine sums (arithmetic/aligned.py).

    GoldenMeshError: another word.
    """
    global _sums
    if sums not in SUMS:
        raise GoldenMeshError(f"sums knows {', '.join(SUMS)}; got {sums!r}")
    _sums = sums


def are_exact() -> bool:
    return _sums == "exact" and not is_plain()


@contextmanager
def exact_sums() -> Iterator[None]:
    """Sum as the matrix engine does inside the block. A matrix product takes 30 to 100 times as long."""
    before = _sums
    sum_as("exact")
    try:
        yield
    finally:
        sum_as(before)

"""Plain float32 in place of a chip's arithmetic: the reference of golden-mesh compare.

A function of the arithmetic names its float32 form in a line above it. Inside `plain_float32` the form runs.
"""

import functools
from contextlib import contextmanager
from typing import Callable, Iterator

_plain = False


def is_plain() -> bool:
    return _plain


@contextmanager
def plain_float32() -> Iterator[None]:
    """Compute goldens in float32 inside the block: no operand is cut, no sum or result rounded."""
    global _plain
    before, _plain = _plain, True
    try:
        yield
    finally:
        _plain = before


def in_float32(form: Callable) -> Callable:
    """Run `form`, with the function's own arguments, in place of the function inside `plain_float32`."""

    def decorate(function: Callable) -> Callable:
        @functools.wraps(function)
        def either(*args, **kwargs):
            return (form if _plain else function)(*args, **kwargs)

        return either

    return decorate


def same(x, *args, **kwargs):
    """The form of a function that only rounds."""
    return x

"""UserError, the one kind of error that a user is meant to read, and the checks that raise it."""

import sys
from functools import cache
from numbers import Integral, Real
from typing import Any, Optional

LONGEST_VALUE = 200  # characters of a value that an error repeats


class UserError(Exception):
    """A mistake that the user of a program can correct.

    The message is one line. It names the option, file or value, what was expected and what to do.
    A command prints it without a traceback and exits with status 2. Any other exception is a defect
    of this repository and keeps its traceback.
    """

    def __init__(self, message: str):
        # A file name or a foreign library's message may bring line breaks; a user gets one line.
        super().__init__(" ".join(message.splitlines()))


def check_integer(name: str, value: Any, least: int, most: Optional[int] = None) -> None:
    """UserError unless `value` is an integer from `least` to `most`. True and False are none."""
    if is_integer(value) and value >= least and (most is None or value <= most):
        return
    expected = f"{least} or more" if most is None else f"{least} to {most}"
    raise UserError(f"{name} must be an integer, {expected}; got {shown(value)}")


def check_number(name: str, value: Any) -> None:
    """UserError unless `value` is a number that a float can hold, neither infinite nor NaN."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or value != value or abs(value) > sys.float_info.max:
        raise UserError(f"{name} must be a finite number, got {shown(value)}")


def is_integer(value: Any) -> bool:
    """Whether `value` is an integer of Python or NumPy. True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_positive(value: Any) -> bool:
    """Whether `value` is a number of Python above 0, neither infinite nor NaN. True is none."""
    return type(value) in (int, float) and 0 < value <= sys.float_info.max


@cache
def warn_once(line: str) -> None:
    """Log a line, once in a process: a config.json is read several times at a start."""
    from loguru import logger  # here, since --help needs no library

    logger.warning(line)


def shown(value: Any) -> str:
    """`value` as an error repeats it: its repr, cut where that is long."""
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."

"""SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt in the main thread, so that `with` blocks close the mesh."""

import signal
from contextlib import contextmanager
from typing import Callable, Iterator, Optional

_number: Optional[int] = None  # the signal that interrupts the program
_is_over = False  # the program only exits now


def handle_signals() -> None:
    """Take the signals from here on, but not those that nohup or a script ignores."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)


def end_signals() -> int:
    """Ignore further signals. Returns the exit status of an interrupted program: 128 plus the signal's number."""
    global _is_over
    _is_over = True
    return 128 + (_number or signal.SIGINT)


def is_interrupted() -> bool:
    """Whether a signal has told the program to end."""
    return _number is not None


@contextmanager
def ctrl_c_calls(pressed: Callable[[], None]) -> Iterator[None]:
    """Inside, Ctrl-C calls `pressed`, which may raise, in the main thread. SIGTERM and SIGHUP still interrupt."""
    before = signal.signal(signal.SIGINT, lambda _number, _frame: pressed())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt(number: int, _frame) -> None:
    global _number
    if not _is_over:
        _number = _number or number
        raise KeyboardInterrupt

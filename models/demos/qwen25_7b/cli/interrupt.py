"""SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt in the main thread, so that `with` blocks close the mesh.

A terminal sends SIGINT also to the compilers that ttnn runs, and ttnn fails if they end early. So this process ignores
SIGINT, which its children inherit. A thread waits for SIGINT, for which the signal must be blocked, and wakes the main
thread with another signal.
"""

import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from typing import Callable, Iterator, Optional

WAKE = signal.SIGUSR1
AGAIN = 0.1  # seconds; a signal just before the main thread begins to wait does not wake it


class _State:
    number: Optional[int] = None  # the signal that interrupts the program
    is_over = False  # the program only exits now
    is_pressed = False  # Ctrl-C is on its way to the main thread
    ctrl_c: Callable[[], None] = staticmethod(lambda: _interrupt(signal.SIGINT))


_state = _State()


def handle_signals() -> None:
    """Take the signals from here on, but not those that nohup or a script ignores.

    Call it before any thread is started.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _frame: _interrupt(number))
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(WAKE, _press)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        threading.Thread(target=_wait_for_ctrl_c, daemon=True).start()
    sys.unraisablehook = _interrupt_again


def end_signals() -> int:
    """Ignore further signals. Returns the exit status of an interrupted program: 128 plus the signal's number."""
    _state.is_over = True
    return 128 + (_state.number or signal.SIGINT)


def is_interrupted() -> bool:
    """Whether a signal has told the program to end."""
    return _state.number is not None


@contextmanager
def ctrl_c_calls(pressed: Callable[[], None]) -> Iterator[None]:
    """Inside, Ctrl-C calls `pressed` in the main thread instead of interrupting. `pressed` may raise.

    SIGTERM and SIGHUP still interrupt.
    """
    before, _state.ctrl_c = _state.ctrl_c, pressed
    try:
        yield
    finally:
        _state.ctrl_c = before


def _wait_for_ctrl_c() -> None:
    while signal.sigwait([signal.SIGINT]):
        _state.is_pressed = True
        while _state.is_pressed:
            signal.pthread_kill(threading.main_thread().ident, WAKE)
            time.sleep(AGAIN)


def _press(_number: int, _frame) -> None:
    if _state.is_pressed:
        _state.is_pressed = False
        _state.ctrl_c()


def _interrupt(number: int) -> None:
    if _state.is_over:
        return
    _state.number = _state.number or number
    raise KeyboardInterrupt


def _interrupt_again(unraisable) -> None:
    """Python drops an exception of a destructor or of a weak reference's callback. The interrupt comes again."""
    if unraisable.exc_type is KeyboardInterrupt:
        os.kill(os.getpid(), signal.SIGINT)
    else:
        sys.__unraisablehook__(unraisable)

"""Ctrl-C, and being told to end, at any moment: the command unwinds, closes what is open and ends with one line.

Python raises KeyboardInterrupt once, wherever the program happens to be. That alone is not enough. While libraries are
imported it is often swallowed (by a bare `except:`, by a callback of the garbage collector). While a mesh is closed it would
leave chips half closed. And a terminal sends the signal to the compilers that ttnn runs, too: ttnn then fails or crashes,
and hears nothing itself, since what it calls them with (`system` of the C library) drops signals meanwhile.

So two processes share the work. One waits and takes the signals. The other works and ignores them, and so do its compilers;
it is told through a pipe, and raises KeyboardInterrupt again and again until the command has heard it, but not where that is
`shielded`.

A program that goes on after a Ctrl-C, such as a chat, says so by `taken`. The process that waits must know it, since it
counts the first signal as the program's end: the two share a byte.
"""

import mmap
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import Callable, Iterator, Optional

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN = 0.2  # seconds after which an interrupt that nobody heard is raised again
PATIENCE = 10.0  # seconds of cleaning up (4 were seen) after which one more Ctrl-C ends the worker as it is


class _State:
    """Of the process that works."""

    by: Optional[int] = None  # the signal that interrupted
    over = False  # it was heard: raised no more
    shields = 0  # that are held over the program now
    taker: Optional[Callable[[], None]] = None  # what a Ctrl-C calls instead of interrupting
    untaken = False  # a Ctrl-C is on its way to the taker
    shared: Optional[mmap.mmap] = None  # one byte, 1 while there is a taker; None where nobody supervises


_state = _State()


def supervised(work: Callable[[], int], complain: Callable[[str], None]) -> int:
    """The exit status of `work`, which may be interrupted. To be called before any thread is started, and once.

    It returns in both processes: the one that works, and the one that waits for it. complain: shows a line to the user.
    """
    # Some are not meant for us: nohup ignores SIGHUP, and a script ignores SIGINT for what it starts in the background.
    ours = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    signal.pthread_sigmask(signal.SIG_BLOCK, ours)
    end, beginning = os.pipe()
    _state.shared = mmap.mmap(-1, 1)
    worker = os.fork()
    os.close(end if worker else beginning)
    if worker:
        return _wait_for(worker, ours, beginning, complain)
    for number in ours:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, _raise)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ours)
    sys.unraisablehook = _unraisable
    threading.Thread(target=_listen, args=(end,), daemon=True).start()
    return work()


def heard() -> int:
    """Raise it no more; the exit status that it means, as shells count: 128 and the signal's number."""
    _state.over = True
    return 128 + (_state.by or signal.SIGINT)  # where nobody supervises, it was Python's own KeyboardInterrupt


def came() -> bool:
    """Whether one came."""
    return _state.by is not None


@contextmanager
def shielded() -> Iterator[None]:
    """What is inside runs to its end; an interrupt that came meanwhile is raised after it."""
    _state.shields += 1
    try:
        yield
    finally:
        _state.shields -= 1
    if came():
        _raise()


@contextmanager
def taken(pressed: Callable[[], None]) -> Iterator[None]:
    """Inside, Ctrl-C interrupts nothing: `pressed` is called in the main thread, wherever that is, and may raise.

    Being told to end (SIGTERM, SIGHUP) interrupts as ever. Where nobody supervises, Python's KeyboardInterrupt comes as ever.
    """
    _state.taker = pressed
    _let_know(True)
    try:
        yield
    finally:
        _let_know(False)
        _state.taker = None


def _let_know(is_taken: bool) -> None:
    if _state.shared is not None:
        _state.shared[0] = is_taken


def _wait_for(worker: int, ours: list[int], pipe: int, complain: Callable[[str], None]) -> int:
    """The process that waits: it passes the first signal on, and returns what became of the worker."""
    first: list[tuple[int, float]] = []  # the signal, and when it came

    def arrived(number: int, frame) -> None:
        if number == signal.SIGINT and _state.shared[0] and not first:
            with suppress(BrokenPipeError):
                os.write(pipe, bytes([number]))
        elif not first:
            first.append((number, time.monotonic()))
            with suppress(BrokenPipeError):  # the worker has just ended
                os.write(pipe, bytes([number]))
        elif time.monotonic() - first[0][1] > PATIENCE:
            os.kill(worker, signal.SIGKILL)

    for number in ours:
        signal.signal(number, arrived)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ours)
    status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    for number in ours:
        signal.signal(number, signal.SIG_IGN)
    if first:
        wanted = 128 + first[0][0]
        if status != wanted:  # it was done already, or it was killed: it did not say so itself
            complain("interrupted")
        return wanted
    if status < 0:
        complain(f"error: the program crashed ({signal.Signals(-status).name})")
        return 128 - status
    return status


def _listen(pipe: int) -> None:
    """The worker's thread: it hears also while the main thread is inside a library."""
    told = os.read(pipe, 1)
    while told == bytes([signal.SIGINT]) and _state.taker is not None:
        _state.untaken = True
        # Again until it is taken: one that comes just before readline waits would be noticed with the next key only.
        while _state.untaken and _state.taker is not None:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)
            time.sleep(AGAIN)
        told = os.read(pipe, 1)
    _state.by = told[0] if told else signal.SIGTERM  # nothing: the process that waits was killed
    while not _state.over:
        signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)  # also wakes it from waiting for the network
        time.sleep(AGAIN)


def _raise(number: int = 0, frame=None) -> None:
    if not came():
        if _state.taker is not None and _state.untaken:  # it may have been given up a moment ago
            _state.untaken = False
            _state.taker()
    elif not _state.shields and not _state.over:
        raise KeyboardInterrupt


def _unraisable(unraisable) -> None:
    # Raised where nothing can be raised, such as a weak reference's callback; it comes again.
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)

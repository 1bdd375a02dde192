"""SIGINT, SIGTERM and SIGHUP at any moment: the command unwinds, closes the mesh and ends with one line.

Python's own KeyboardInterrupt is raised once, wherever the program is. That fails in three places:
- An import often swallows it, by a bare `except:` or in a callback of the garbage collector.
- Inside the closing of a mesh it leaves chips half closed.
- A terminal also sends the signal to the compilers that ttnn runs. ttnn then fails or crashes.

So two processes share the work. The supervisor waits and takes the signals. The worker and its
compilers ignore them. The supervisor tells the worker through a pipe. The worker then raises
KeyboardInterrupt until the command has handled it, but not inside `shielded`.

A chat goes on after Ctrl-C: it uses `ctrl_c_calls`. The supervisor counts the first signal as the program's
end unless a shared byte says that the program handles Ctrl-C.
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
AGAIN = 0.2  # seconds between two raises of an interrupt that was not handled
PATIENCE = 10.0  # seconds of cleaning up, after which one more Ctrl-C kills the worker


class _State:
    """State of the worker process."""

    by: Optional[int] = None  # the signal that interrupted
    over = False  # the command has handled it: raised no more
    shields = 0  # nesting depth of `shielded`
    handler: Optional[Callable[[], None]] = None  # what a Ctrl-C calls instead of interrupting
    unhandled = False  # a Ctrl-C is on its way to the handler
    shared: Optional[mmap.mmap] = (
        None  # one byte, 1 while there is a handler; None without a supervisor
    )


_state = _State()


def supervised(work: Callable[[], int], complain: Callable[[str], None]) -> int:
    """Run `work` under a supervisor and return its exit status.

    Call it once, before any thread is started. It returns in both processes. complain: shows a line
    to the user.
    """
    # nohup ignores SIGHUP, and a script ignores SIGINT for its background jobs: keep that.
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
    """Stop raising the interrupt and return its exit status: 128 plus the signal's number."""
    _state.over = True
    return 128 + (
        _state.by or signal.SIGINT
    )  # without a supervisor it was Python's own KeyboardInterrupt


def came() -> bool:
    """Whether an interrupt came."""
    return _state.by is not None


@contextmanager
def shielded() -> Iterator[None]:
    """The block runs to its end. An interrupt that came meanwhile is raised after it."""
    _state.shields += 1
    try:
        yield
    finally:
        _state.shields -= 1
    if came():
        _raise()


@contextmanager
def ctrl_c_calls(pressed: Callable[[], None]) -> Iterator[None]:
    """Inside, Ctrl-C calls `pressed` in the main thread instead of interrupting. `pressed` may raise.

    SIGTERM and SIGHUP still interrupt. Without a supervisor, Ctrl-C is Python's KeyboardInterrupt.
    """
    _state.handler = pressed
    _share_handled(True)
    try:
        yield
    finally:
        _share_handled(False)
        _state.handler = None


def _share_handled(handled: bool) -> None:
    if _state.shared is not None:
        _state.shared[0] = handled


def _wait_for(worker: int, ours: list[int], pipe: int, complain: Callable[[str], None]) -> int:
    """The supervisor: pass the first signal on, wait, and return the worker's exit status."""
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
        expected = 128 + first[0][0]
        if status != expected:  # it had ended, or it was killed without a message
            complain("interrupted")
        return expected
    if status < 0:
        complain(f"error: the program crashed ({signal.Signals(-status).name})")
        return 128 - status
    return status


def _listen(pipe: int) -> None:
    """The worker's thread. It reads the pipe while the main thread is inside a library."""
    received = os.read(pipe, 1)
    while received == bytes([signal.SIGINT]) and _state.handler is not None:
        _state.unhandled = True
        # Again until it is handled: readline would notice a signal that comes just before it waits only with the next key.
        while _state.unhandled and _state.handler is not None:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)
            time.sleep(AGAIN)
        received = os.read(pipe, 1)
    _state.by = (
        received[0] if received else signal.SIGTERM
    )  # nothing: the process that waits was killed
    while not _state.over:
        signal.pthread_kill(
            threading.main_thread().ident, signal.SIGALRM
        )  # also wakes it from waiting for the network
        time.sleep(AGAIN)


def _raise(number: int = 0, frame=None) -> None:
    if not came():
        if (
            _state.handler is not None and _state.unhandled
        ):  # the handler may just have been removed
            _state.unhandled = False
            _state.handler()
    elif not _state.shields and not _state.over:
        raise KeyboardInterrupt


def _unraisable(unraisable) -> None:
    # Raised where Python ignores an exception, such as a weak reference's callback. It is raised again.
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)

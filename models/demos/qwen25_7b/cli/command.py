"""How every program of this folder is run from the command line.

A program imports torch, transformers and ttnn inside its main, so that `run` is in charge from the start.
"""

import errno
import gc
import os
import signal
import sys
import warnings
from contextlib import contextmanager
from typing import Any, Callable, Iterator, NoReturn, Optional, TextIO

from ..errors import UserError
from .terminal import complain

REFUSED = 2  # the exit status of a user error
READER_LEFT = 141  # 128 + SIGPIPE, a shell's status for a tool with a closed pipe
QUIET = {
    "TT_LOGGER_LEVEL": "fatal",
    "LOGURU_LEVEL": "ERROR",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_VERBOSITY": "error",
}

_signal: Optional[int] = None  # that has told the program to end
_is_over = False  # the program only exits now


def quiet_libraries() -> None:
    """Keep the libraries from logging, unless the environment asks for it; before they are imported.

    What this folder logs is a line on stderr.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    from loguru import logger

    levels = {"": os.environ["LOGURU_LEVEL"], __package__.rpartition(".")[0]: "INFO"}
    logger.configure(handlers=[dict(sink=_show, level=0, filter=levels)])


def _show(message: Any) -> None:
    complain(message.record["message"])


def run(main: Callable[[], Optional[int]]) -> NoReturn:
    """Run a program and exit with its status: `if __name__ == "__main__": run(main)`.

    SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt in the main thread, so that `with` blocks close the mesh.
    """
    global _is_over
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup or a script sets it
            signal.signal(number, _interrupt)
    gc.set_threshold(100_000)  # torch, transformers and ttnn make two million objects: the default takes a second
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")
    try:
        status = status_of(main)
    except KeyboardInterrupt:  # outside status_of
        status = _interrupted()
    finally:
        _is_over = True
        for stream in (sys.stdout, sys.stderr):
            _flush(stream)
    sys.exit(status)


def status_of(command: Callable[[], Optional[int]]) -> int:
    """Run a command and return its exit status. A user error is one line on stderr; a defect is raised."""
    try:
        return command() or 0
    except KeyboardInterrupt:
        return _interrupted()
    except Exception as error:
        if is_interrupted():  # the error is a consequence
            return _interrupted()
        if isinstance(error, BrokenPipeError):  # `| head`
            return READER_LEFT
        message = _user_message(error)
        if message is None:
            raise
        complain(f"error: {message}")
        return REFUSED


def is_interrupted() -> bool:
    """Whether a signal has told the program to end."""
    return _signal is not None


@contextmanager
def ctrl_c_calls(pressed: Callable[[], None]) -> Iterator[None]:
    """Inside, Ctrl-C calls `pressed`, which may raise, in the main thread. SIGTERM and SIGHUP still interrupt."""
    before = signal.signal(signal.SIGINT, lambda _number, _frame: pressed())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt(number: int, _frame: Any) -> None:
    global _signal
    if not _is_over:
        _signal = _signal or number
        raise KeyboardInterrupt


def _interrupted() -> int:
    """Return the exit status of an interrupted program: 128 plus the signal's number."""
    global _is_over
    _is_over = True
    complain("interrupted")
    return 128 + (_signal or signal.SIGINT)


def _user_message(error: Exception) -> Optional[str]:
    """What a user can do about the error. None for a defect of this repository."""
    if isinstance(error, UserError):
        return f"{error}"
    if isinstance(error, OSError) and (error.filename or error.errno in (errno.ENOSPC, errno.EDQUOT)):
        return f"{error.filename or 'the output'}: {error.strerror}"
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("models"):
        return (
            f"{error.name} is not installed for this Python ({sys.executable}): run "
            "`make demo` once, then `source .venv/bin/activate`"
        )
    return None


def _flush(stream: TextIO) -> None:
    """Empty the stream's buffer. Python complains at exit about a buffer that cannot be written."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

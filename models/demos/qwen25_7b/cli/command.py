"""How every program of this folder is run from the command line.

A program imports torch, transformers and ttnn inside its main, so that `run` is in charge from the start.
"""

import errno
import gc
import os
import sys
import warnings
from typing import Any, Callable, NoReturn, Optional, TextIO

from ..errors import UserError
from . import interrupt
from .terminal import complain

REFUSED = 2  # the exit status of a user error
READER_LEFT = 141  # 128 + SIGPIPE, a shell's status for a tool with a closed pipe
QUIET = {
    "TT_LOGGER_LEVEL": "fatal",
    "LOGURU_LEVEL": "ERROR",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_VERBOSITY": "error",
}


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
    """Run a program and exit with its status: `if __name__ == "__main__": run(main)`."""
    interrupt.handle_signals()
    gc.set_threshold(100_000)  # torch, transformers and ttnn make two million objects: the default takes a second
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")
    try:
        status = status_of(main)
    except KeyboardInterrupt:  # outside status_of
        status = _interrupted()
    finally:
        interrupt.end_signals()
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
        if interrupt.is_interrupted():  # the error is a consequence
            return _interrupted()
        if isinstance(error, BrokenPipeError):  # `| head`
            return READER_LEFT
        message = _user_message(error)
        if message is None:
            raise
        complain(f"error: {message}")
        return REFUSED


def _interrupted() -> int:
    status = interrupt.end_signals()
    complain("interrupted")
    return status


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

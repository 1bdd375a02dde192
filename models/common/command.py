"""How every program of this repository is run from the command line.

A program imports what takes long (torch, transformers, ttnn) inside its main, so that `run` is in charge from the start.
"""

import os
import sys
import warnings
from typing import Callable, NoReturn, TextIO

from models.common import interrupt
from models.common.errors import UserError
from models.common.terminal import complain, printable, say

REFUSED = 2  # the status of what a user can mend
DEFECT = 1  # the status of what only we can mend
NOBODY_READS = 141  # 128 + SIGPIPE, what a shell gives for other tools whose reader has left
QUIET = {
    "TT_LOGGER_LEVEL": "fatal",
    "LOGURU_LEVEL": "ERROR",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_VERBOSITY": "error",
}


def quiet_libraries() -> None:
    """Keep the libraries from logging, unless the environment asks for it; before they are imported."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


def status_of(command: Callable[[], None]) -> int:
    """Run it; what a user can mend becomes one line on stderr and a status, what only we can mend is raised."""
    try:
        command()
    except KeyboardInterrupt:
        return _interrupted()
    except Exception as error:
        if interrupt.came():  # what fails after one fails because of it
            return _interrupted()
        if isinstance(error, UserError):
            complain(f"error: {error}")
            return REFUSED
        if isinstance(error, BrokenPipeError):
            return NOBODY_READS
        raise
    return 0


def run(main: Callable[[], int]) -> NoReturn:
    """The process from its first line to its last: `if __name__ == "__main__": run(main)`."""
    status = status_of(_check_streams) or interrupt.supervised(lambda: _whole(main), complain)
    for stream in (sys.stdout, sys.stderr):
        _let_go(stream)
    sys.exit(status)


def _whole(main: Callable[[], int]) -> int:
    """main's status, or that of what it left to be shown."""
    status = _status(main) or status_of(lambda: say(end=""))  # what a library wrote there may wait in a buffer
    interrupt.heard()  # all is done: from here on it is Python's exit that would be disturbed
    return status


def _status(main: Callable[[], int]) -> int:
    try:
        return main()
    except SystemExit as stop:  # --help
        return stop.code or 0
    except KeyboardInterrupt:  # in the moment between main's own end and here
        return _interrupted()
    except Exception:
        import traceback

        # Printed here and not by Python, which would let the control characters of a message through.
        sys.stderr.write(printable(traceback.format_exc()))
        return DEFECT


def _interrupted() -> int:
    status = interrupt.heard()
    complain("interrupted")
    return status


def _check_streams() -> None:
    """UserError if stdout is closed. What is closed leads nowhere from now on: else the next file would take its place."""
    closed = [stream is None for stream in (sys.stdin, sys.stdout, sys.stderr)]
    for number in (number for number, is_closed in enumerate(closed) if is_closed):
        nowhere = os.open(os.devnull, os.O_RDWR)
        if nowhere != number:  # another file has its place already
            os.close(nowhere)
    sys.stdout = sys.stdout or open(os.devnull, "w")
    sys.stderr = sys.stderr or open(os.devnull, "w")
    if closed[1]:
        raise UserError("standard output is closed, so there is no place for what this program shows")


def _let_go(stream: TextIO) -> None:
    """What cannot be written stays in a buffer, which Python would complain about while it exits."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

"""How every program of this repository is run from the command line.

A program imports torch, transformers and ttnn inside its main, so that `run` is in charge from the start.
"""

import os
import resource
import sys
import warnings
from typing import Callable, NoReturn, TextIO

from models.common import interrupt
from models.common.errors import UserError
from models.common.terminal import complain, printable, say

REFUSED = 2  # the exit status of a user error
DEFECT = 1  # the exit status of a defect of this repository
OPEN_FILES = 128  # the demo holds 23 on a golden T3K (measured in /proc); a card's driver adds more
READER_LEFT = 141  # 128 + SIGPIPE, a shell's status for a tool with a closed pipe
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
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


def status_of(command: Callable[[], None]) -> int:
    """Run a command and return its exit status. A user error is one line on stderr; a defect is raised."""
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
            return READER_LEFT
        if isinstance(error, ModuleNotFoundError) and _is_foreign(error):
            complain(
                f"error: {error.name} is not installed for this Python ({sys.executable}): run "
                "`make demo` once, then `source .venv/bin/activate`"
            )
            return REFUSED
        raise
    return 0


def run(main: Callable[[], int]) -> NoReturn:
    """Run a program and exit with its status: `if __name__ == "__main__": run(main)`."""
    _tidy_libraries()
    status = (
        status_of(_check_streams)
        or status_of(_check_python)
        or status_of(_check_open_files)
        or interrupt.supervised(lambda: _whole(main), complain)
    )
    for stream in (sys.stdout, sys.stderr):
        _let_go(stream)
    sys.exit(status)


def _tidy_libraries() -> None:
    """Keep progress bars of downloads out of files, and a folder of torch out of the temporary one."""
    if sys.stderr is None or not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(caches, "torchinductor"))


def _whole(main: Callable[[], int]) -> int:
    """The status of main, or of showing the rest of its output."""
    status = _status(main) or status_of(
        lambda: say(end="")
    )  # what a library wrote there may wait in a buffer
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


def _is_foreign(error: ModuleNotFoundError) -> bool:
    """Whether the missing module is one of another package."""
    return (error.name or "models").split(".")[0] != "models"


def _interrupted() -> int:
    status = interrupt.heard()
    complain("interrupted")
    return status


def _check_python() -> None:
    if sys.flags.optimize > 1:
        raise UserError(
            "python -OO leaves out docstrings, without which transformers does not work: run "
            "without -OO, or unset PYTHONOPTIMIZE"
        )


def _check_open_files() -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < OPEN_FILES:
        raise UserError(
            f"the limit of {limit} open files is too low, at least {OPEN_FILES} are needed: "
            "run `ulimit -n 1024` first"
        )


def _check_streams() -> None:
    """UserError if stdout is closed. A closed stream becomes /dev/null: else the next file gets its number."""
    closed = [stream is None for stream in (sys.stdin, sys.stdout, sys.stderr)]
    for number in (number for number, is_closed in enumerate(closed) if is_closed):
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor != number:  # another file has its place already
            os.close(descriptor)
    sys.stdout = sys.stdout or open(os.devnull, "w")
    sys.stderr = sys.stderr or open(os.devnull, "w")
    if closed[1]:
        raise UserError(
            "standard output is closed, so there is no place for what this program shows"
        )


def _let_go(stream: TextIO) -> None:
    """Empty the stream's buffer. Python complains at exit about a buffer that cannot be written."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

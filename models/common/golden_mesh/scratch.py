"""The directory of this process: what ttnn writes on a golden mesh goes there, and goes with the process.

A process that is killed leaves its directory behind, and the next golden mesh removes it. What tells it from the
directory of a process that lives is a lock on a file in it, which the kernel takes back when its holder ends in any way.
"""

import atexit
import contextlib
import fcntl
import os
import shlex
import shutil
import tempfile
from pathlib import Path

from models.common.golden_mesh.errors import GoldenMeshError

_PREFIX = "golden-mesh-"
_LOCK = "lock"
NEEDED_BYTES = 32 << 20  # the demo writes 13 MB, nearly all of it stubs of kernels


def make() -> Path:
    """A new directory below the one for temporary files (TMPDIR), this process's alone, removed when it exits.

    Directories that killed processes left there are removed first. GoldenMeshError: nothing can be written there, or
    too little.
    """
    try:
        parent = Path(tempfile.gettempdir())
        _remove_stale(parent)
        _check_room(parent)
        directory = _make_locked(parent)
    except OSError as error:
        raise unusable(error) from error
    atexit.register(_remove, directory, os.getpid())
    return directory


def unusable(error: OSError) -> GoldenMeshError:
    """What to tell a user when temporary files cannot be written."""
    place = error.filename or os.environ.get("TMPDIR", "/tmp")
    return GoldenMeshError(
        f"the golden mesh cannot write its temporary files: {error.strerror or error} ({place}): set TMPDIR to a folder "
        f"with {NEEDED_BYTES >> 20} MB to spare"
    )


def shell_safe(directory: Path) -> Path:
    """A path of the same directory that a shell takes as one word: ttnn runs compilers by a line of text, unquoted.

    Good for as long as this process lives.
    """
    if shlex.quote(f"{directory}") == f"{directory}":
        return directory
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    return Path(f"/proc/{os.getpid()}/fd/{handle}")


def remove_at_exit_if_empty(directory: str) -> None:
    """One that a library made and shares with other processes, of which nobody may have put anything there."""

    def remove() -> None:
        with contextlib.suppress(OSError):  # it is not empty, or another process was faster
            os.rmdir(directory)

    atexit.register(remove)


def _check_room(parent: Path) -> None:
    free = shutil.disk_usage(parent).free
    if free < NEEDED_BYTES:
        raise OSError(None, f"{free >> 20} MB left", f"{parent}")


def _make_locked(parent: Path) -> Path:
    while True:
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT)  # stays open: closing it would let go of the lock
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (directory / _LOCK).exists():
            return directory
        os.close(lock)  # between the two lines above somebody found it unlocked and removed it


def _remove_stale(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            if path.stat().st_uid != os.getuid():
                continue
            lock = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            continue  # its owner, or another golden mesh that starts now, was faster
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)
        except BlockingIOError:
            pass  # its owner lives
        finally:
            os.close(lock)


def _remove(directory: Path, owner: int) -> None:
    if os.getpid() == owner:  # and not a fork of it
        shutil.rmtree(directory, ignore_errors=True)

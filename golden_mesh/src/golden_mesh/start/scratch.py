"""The temporary directory of this process. ttnn's files on a golden mesh go there and are removed at exit.

A killed process leaves its directory behind. The next golden mesh removes it if a file in it bears our mark, no process
holds the lock on that file, and neither is a link.
"""

import atexit
import fcntl
import os
import shlex
import shutil
import tempfile
from pathlib import Path

from golden_mesh.errors import GoldenMeshError

_PREFIX = "golden-mesh-"
_LOCK = "lock"
_MARK = b"scratch directory of a golden mesh\n"  # content of the lock file
NEEDED_BYTES = 32 << 20  # the demo writes 13 MB, nearly all of it stubs of kernels
MEMORY = Path("/dev/shm")
AMPLE_BYTES = 1 << 30  # of memory: a long run of tests writes 300 MB


def make() -> Path:
    """Make a directory for this process in TMPDIR, in memory or in the temporary directory. It is removed at exit.

    Removes the directories of killed processes first. GoldenMeshError: no permission, or too little space.
    """
    try:
        parent = _parent()
        _remove_stale(parent)
        if (free := shutil.disk_usage(parent).free) < NEEDED_BYTES:
            raise OSError(None, f"{free >> 20} MB left", f"{parent}")
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        # The file stays open: closing it releases the lock.
        lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(lock, _MARK)  # under the lock: others remove what is marked and not locked
    except OSError as error:
        raise unusable(error) from error
    atexit.register(_remove, directory, os.getpid())
    return directory


def _parent() -> Path:
    """TMPDIR, if it is set. Else memory with room that runs programs: a disk takes a third longer for 3,000 stubs."""
    if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK):
        status = os.statvfs(MEMORY)
        if status.f_bavail * status.f_frsize >= AMPLE_BYTES and not status.f_flag & os.ST_NOEXEC:
            return MEMORY
    return Path(tempfile.gettempdir())


def unusable(error: OSError) -> GoldenMeshError:
    """Return the error for temporary files that cannot be written."""
    place = error.filename or os.environ.get("TMPDIR", "/tmp")
    return GoldenMeshError(
        f"the golden mesh cannot write its temporary files: {error.strerror or error} ({place}): set TMPDIR to a "
        f"folder with {NEEDED_BYTES >> 20} MB to spare"
    )


def shell_safe(directory: Path) -> Path:
    """Return a path to `directory` that a shell takes as one word, while this process lives: ttnn runs compilers by an
    unquoted line of text.
    """
    if shlex.quote(f"{directory}") == f"{directory}":
        return directory
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    return Path(f"/proc/{os.getpid()}/fd/{handle}")


def _remove_stale(parent: Path) -> None:
    for directory in parent.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(directory / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue  # another program's or user's, or another process has removed it
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.read(lock, len(_MARK) + 1) == _MARK:
                shutil.rmtree(directory, ignore_errors=True)  # not if it is a link
        except BlockingIOError:
            pass  # its process is alive
        finally:
            os.close(lock)


def _remove(directory: Path, owner: int) -> None:
    if os.getpid() == owner:  # not in a fork
        shutil.rmtree(directory, ignore_errors=True)

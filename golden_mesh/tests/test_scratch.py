"""Each process has a separate temporary directory, which is removed at its end. If it cannot be made, the error is
clear.
"""

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

import golden_mesh
from golden_mesh.errors import GoldenMeshError
from golden_mesh.start import scratch

# Prints its directory, and ends when it is told to.
ALONE = "from golden_mesh.start import scratch; print(scratch.make(), flush=True); input()"


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A directory for the temporary files of this test."""
    monkeypatch.setattr(tempfile, "tempdir", f"{tmp_path}")
    monkeypatch.setenv("TMPDIR", f"{tmp_path}")
    monkeypatch.setattr(scratch.atexit, "register", lambda *args: None)
    return tmp_path


def start(program: str, temporary: Path) -> tuple[subprocess.Popen, Path]:
    """Start a process. Returns it, and the directory that it prints."""
    source = Path(golden_mesh.__file__).parents[1]
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": f"{source}", "TMPDIR": f"{temporary}"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return process, Path(process.stdout.readline().strip())


def test_the_next_start_removes_what_a_killed_process_left_and_no_other(temporary):
    (killed, left), (alive, in_use) = start(ALONE, temporary), start(ALONE, temporary)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert left.is_dir() and in_use.is_dir() and left != in_use
    for name, lock in (("golden-mesh-results", None), ("golden-mesh-notes", "mine")):
        (temporary / name).mkdir()  # a user's folders may have such names, and a file `lock` in them
        if lock:
            (temporary / name / "lock").write_text(lock)
    scratch.make()
    assert not left.exists() and in_use.is_dir()
    assert (temporary / "golden-mesh-results").is_dir() and (temporary / "golden-mesh-notes").is_dir()
    alive.communicate("\n")
    assert alive.returncode == 0 and not in_use.exists()


@pytest.mark.parametrize(
    "megabytes, flags, there", [(2048, 0, True), (64, 0, False), (2048, os.ST_NOEXEC, False)]
)  # Docker's /dev/shm has 64 MB, and runs no programs
def test_without_tmpdir_it_lies_in_memory_that_has_room_and_runs_programs(
    temporary, monkeypatch, megabytes, flags, there
):
    memory = temporary / "memory"
    memory.mkdir()
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setattr(scratch, "MEMORY", memory)
    status = SimpleNamespace(f_bavail=megabytes, f_bfree=0, f_blocks=0, f_frsize=1 << 20, f_flag=flags)
    monkeypatch.setattr(scratch.os, "statvfs", lambda path: status)
    assert scratch.make().parent == (memory if there else temporary)


def refuse(number: int) -> Mock:
    return Mock(side_effect=OSError(number, os.strerror(number), "/there/golden-mesh-x"))


@pytest.mark.parametrize(
    "owner, name, function, message",
    [
        ("shutil", "disk_usage", lambda path: SimpleNamespace(free=3 << 20), "3 MB left"),
        ("tempfile", "mkdtemp", refuse(errno.ENOSPC), "No space left on device"),
        ("tempfile", "mkdtemp", refuse(errno.EACCES), r"Permission denied \(/there/golden-mesh-x\)"),
        ("tempfile", "mkdtemp", refuse(errno.EROFS), "Read-only file system"),
    ],
)
def test_a_folder_that_cannot_be_written_is_one_line(temporary, monkeypatch, owner, name, function, message):
    monkeypatch.setattr(getattr(scratch, owner), name, function)
    start = "^the golden mesh cannot write its temporary files: .*"
    with pytest.raises(GoldenMeshError, match=f"{start}{message}.*: set TMPDIR"):
        scratch.make()

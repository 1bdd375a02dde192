"""Each process has a separate temporary directory, which is removed at its end.

If it cannot be made, the error is clear.
"""

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from golden_mesh import scratch
from golden_mesh.errors import GoldenMeshError

SOURCE = Path(__file__).resolve().parents[1] / "src"

EXAMPLE = """
import golden_mesh

golden_mesh.activate("N300")
import torch, ttnn

ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
x = ttnn.from_torch(torch.ones(1, 1, 32, 128), layout=ttnn.TILE_LAYOUT, device=mesh)
y = ttnn.all_reduce(ttnn.silu(x), cluster_axis=1)
assert "/dev/shm" not in open("/proc/self/maps").read(), "shared memory, which would be left behind"
ttnn.close_mesh_device(mesh)
"""
ALONE = "from golden_mesh import scratch; print(scratch.make(), flush=True); input()"


def environment(temporary: Path) -> dict[str, str]:
    """Nothing that this process's golden mesh has set."""
    ours = ("TT_", "OMP", "TORCHINDUCTOR", "LOGURU")
    rest = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return rest | {"PYTHONPATH": f"{SOURCE}", "TMPDIR": f"{temporary}"}


def start(program: str, temporary: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", program], cwd=SOURCE, env=environment(temporary), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A directory for the temporary files of this test."""
    monkeypatch.setattr(tempfile, "tempdir", f"{tmp_path}")
    monkeypatch.setattr(scratch.atexit, "register", lambda *args: None)
    return tmp_path


@pytest.mark.parametrize("name", ["plain", "with a space; and 'more'"])
def test_a_clean_exit_leaves_no_files_and_prints_nothing(tmp_path, name):
    temporary = tmp_path / name
    temporary.mkdir()
    process = start(EXAMPLE, temporary)
    said = process.communicate(timeout=300)
    assert process.returncode == 0 and said == ("", "")
    assert not os.listdir(temporary)


def test_the_next_start_removes_what_a_killed_process_left_and_no_other(temporary):
    killed, alive = start(ALONE, temporary), start(ALONE, temporary)
    left, in_use = (Path(process.stdout.readline().strip()) for process in (killed, alive))
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    foreign = temporary / "golden-mesh-of-somebody"
    foreign.mkdir()
    assert left.is_dir() and in_use.is_dir()
    scratch.make()
    assert not left.exists() and in_use.is_dir() and foreign.is_dir()
    alive.communicate("\n")
    assert alive.returncode == 0 and not in_use.exists()


@pytest.mark.parametrize("lock", [None, b"", b"mine", "link"])
def test_folders_of_our_name_without_our_mark_stay(temporary, lock):
    """A user's folder may have such a name, and a file `lock` in it."""
    folder = temporary / "golden-mesh-results"
    folder.mkdir()
    (folder / "data").write_text("a user's")
    if lock == "link":
        (temporary / "elsewhere").write_bytes(scratch._MARK)
        (folder / "lock").symlink_to(temporary / "elsewhere")
    elif lock is not None:
        (folder / "lock").write_bytes(lock)
    scratch.make()
    assert (folder / "data").read_text() == "a user's"


def test_a_link_of_our_name_is_not_followed(temporary):
    target = temporary / "target"
    target.mkdir()
    (target / "lock").write_bytes(scratch._MARK)
    (temporary / "golden-mesh-link").symlink_to(target)
    os.mkfifo(temporary / "golden-mesh-pipe")
    (temporary / "golden-mesh-file").touch()
    scratch.make()
    assert (target / "lock").exists() and (temporary / "golden-mesh-link").is_symlink()


def test_two_processes_that_start_at_once_get_a_directory_each(temporary):
    processes = [start(ALONE, temporary) for _ in range(4)]
    directories = {process.stdout.readline().strip() for process in processes}
    assert len(directories) == 4 and all(Path(directory).is_dir() for directory in directories)
    for process in processes:
        process.communicate("\n")
    assert not os.listdir(temporary)


def test_a_directory_that_was_removed_before_it_was_locked_is_made_again(temporary, monkeypatch):
    """Another start finds the directory unlocked, between its creation and its locking."""
    lock, removed = scratch.fcntl.flock, []

    def too_late(handle, how):
        if not removed:
            removed.append(Path(os.readlink(f"/proc/self/fd/{handle}")).parent)
            shutil.rmtree(removed[0])
        lock(handle, how)

    monkeypatch.setattr(scratch.fcntl, "flock", too_late)
    directory = scratch.make()
    assert directory.is_dir() and directory != removed[0]


def test_a_forked_child_keeps_its_parents_directory(temporary):
    directory = scratch.make()
    scratch._remove(directory, os.getpid() + 1)
    assert directory.is_dir()
    scratch._remove(directory, os.getpid())
    assert not directory.exists()


def test_too_little_room_is_one_line(temporary, monkeypatch):
    monkeypatch.setattr(scratch.shutil, "disk_usage", lambda path: SimpleNamespace(free=3 << 20))
    with pytest.raises(
        GoldenMeshError,
        match=rf"^the golden mesh cannot write .* 3 MB left \({temporary}\): set TMPDIR",
    ):
        scratch.make()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_folder_that_cannot_be_written_is_one_line(temporary, monkeypatch, number):
    def refuse(**options):
        raise OSError(number, os.strerror(number), f"{temporary}/golden-mesh-x")

    monkeypatch.setattr(scratch.tempfile, "mkdtemp", refuse)
    with pytest.raises(
        GoldenMeshError, match=rf"{os.strerror(number)} \({temporary}/golden-mesh-x\): set TMPDIR"
    ):
        scratch.make()


def test_no_folder_for_temporary_files_at_all(monkeypatch):
    def none():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(scratch.tempfile, "gettempdir", none)
    with pytest.raises(GoldenMeshError, match="No usable temporary directory.*set TMPDIR"):
        scratch.make()


def test_a_path_with_shell_characters_gets_a_plain_one(tmp_path):
    odd = tmp_path / "a b'c"
    odd.mkdir()
    (odd / "file").write_text("found")
    safe = scratch.shell_safe(odd)
    assert (
        subprocess.run(f"cat {safe}/file", shell=True, capture_output=True, text=True).stdout
        == "found"
    )
    assert scratch.shell_safe(tmp_path) == tmp_path

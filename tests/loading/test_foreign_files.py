"""Files that do not belong to the cache never change.

Each test compares a directory tree before and after a command.
"""

import hashlib
import os
import shutil
import stat
from argparse import Namespace
from pathlib import Path

import pytest

from models.common.cache_directory import TAG_FILE, CacheError
from models.common.errors import UserError
from models.demos.qwen25_7b.bench_load import KIND as BENCH
from models.demos.qwen25_7b.loading.__main__ import main
from models.demos.qwen25_7b.loading.opened import open_checkpoint
from models.demos.qwen25_7b.loading.tiles import KIND
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from tests.loading.support import load, tiles

COMMANDS = [["list"], ["verify"], ["prune"], ["prune", "--all"], ["prune", "--model", "m"]]


def tree(root: Path) -> dict[str, tuple]:
    """Return type, mode, size, time and content of every path below a directory."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = os.readlink(path) if path.is_symlink() else None
        if stat.S_ISREG(status.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        found[f"{path.relative_to(root)}"] = (
            stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode), status.st_size,
            status.st_mtime_ns, content,
        )  # fmt: skip
    return found


def write(root: Path, *files: str) -> None:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(f"the user's {file}")


TILE = "0" * 32 + "-" + "1" * 8 + ".tensorbin"
PART = "x.json." + "2" * 32 + ".part"


def tag(root: Path, content: str = "Signature: 8a477f597d28d172789f06886806bc55\n") -> None:
    root.mkdir(exist_ok=True)
    (root / TAG_FILE).write_text(content)


USERS = {
    "a checkout with models": lambda d: write(d, "models/tt/mlp.py", "README.md"),
    "a folder tmp": lambda d: write(d, "tmp/thesis.tex"),
    "names as ours without a mark": lambda d: write(
        d, f"tmp/{TILE[:32]}.tensorbin", f"tiles/00/{TILE}", f"models/x/{PART}"
    ),
    "one file": lambda d: write(d, "a"),
    "another program's cache": lambda d: (tag(d), write(d, "wheels/a.whl")),
    "another program's cache with folders as ours": lambda d: (
        tag(d),
        write(d, "models/resnet/weights.bin", "tmp/download"),
    ),
    "another cache of this program": lambda d: BENCH.prepare(d),
    "a newer version's cache": lambda d: tag(d, KIND.mark.replace("format 1", "format 2")),
    "a mark that is a link": lambda d: (
        write(d, "a"),
        (d / TAG_FILE).symlink_to("a"),
    ),
    "a mark that is a FIFO": lambda d: (write(d, "a"), os.mkfifo(d / TAG_FILE)),
}


@pytest.mark.parametrize("case", USERS)
def test_a_users_directory_is_refused_and_unchanged(tmp_path, capsys, case):
    directory = tmp_path / "directory"
    directory.mkdir(mode=0o755)
    USERS[case](directory)
    before = tree(tmp_path)
    for command in COMMANDS:
        assert main(["--cache", f"{directory}", *command]) == 2
        out, error = capsys.readouterr()
        assert out == "" and error.startswith(f"error: {directory}: ") and error.count("\n") == 1
    with pytest.raises(CacheError, match=f"^{directory}: "):
        open_checkpoint(SMALL_CHECKPOINT, cache=directory)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_empty_value_is_refused(tmp_path, capsys, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "models/a.py", "tmp/b")
    before = tree(tmp_path)
    assert main(["--cache", "", *command]) == 2
    assert "--cache is empty" in capsys.readouterr().err
    with pytest.raises(UserError, match="--cache is empty"):
        open_checkpoint(SMALL_CHECKPOINT, cache="")
    assert tree(tmp_path) == before


def test_a_command_on_a_system_folder_is_refused(capsys):
    assert main(["--cache", "/etc", "list"]) == 2
    assert "/etc: holds files and is not a cache" in capsys.readouterr().err


@pytest.fixture(scope="module")
def loaded_cache(tmp_path_factory):
    """A cache of the small checkpoint. Tests copy it."""
    place = tmp_path_factory.mktemp("loaded")
    model = Path(shutil.copytree(SMALL_CHECKPOINT, place / "model"))
    load(model, place / "cache")
    return place


@pytest.fixture
def place(loaded_cache, tmp_path):
    shutil.copytree(loaded_cache / "cache", tmp_path / "cache")
    shutil.copytree(loaded_cache / "model", tmp_path / "model", copy_function=os.link)
    return tmp_path


def test_prune_removes_what_the_cache_made_and_nothing_else(place, capsys):
    cache, elsewhere = place / "cache", place / "elsewhere"
    write(elsewhere, TILE, PART, "checkpoint.json", "kept.txt", f"00/{TILE}", f"loads/{PART}")
    (model,) = (cache / "models").iterdir()
    folder = tiles(cache)[0].parent
    foreign = ["notes.txt", "tmp/mine", "tmp/mine.tensorbin", f"tiles/{folder.name}/mine.tensorbin"]
    foreign += [f"models/{model.name}/mine.part", f"models/mine/{PART}", f"tiles/mine/{TILE}"]
    write(cache, *foreign)
    links = {
        "tiles/zz": elsewhere,
        "tiles/00-link": elsewhere,
        "models/linked-0123456789ab": elsewhere,
        f"models/{model.name}/linked": elsewhere,
        "tmp/linked": elsewhere / "kept.txt",
    }
    for name, target in links.items():
        (cache / name).symlink_to(target)
    kept = {name: tree(cache)[name] for name in [*foreign, *links]}
    outside = tree(elsewhere)
    count = sum(path.is_file() and not path.is_symlink() for path in cache.rglob("*"))
    assert main(["--cache", f"{cache}", "prune", "--all"]) == 0
    removed = count - len(foreign) - 2  # the mark and the lock stay
    assert f" removed, {removed} files" in capsys.readouterr().out
    assert tree(elsewhere) == outside
    found = tree(cache)
    assert {name: found[name] for name in kept} == kept
    files = {name for name, (kind, *_) in found.items() if kind != stat.S_IFDIR}
    assert files == {*kept, TAG_FILE, "lock"}


@pytest.mark.parametrize("folder", ["tiles", "models", "tmp"])
@pytest.mark.parametrize("kind", ["link", "fifo", "file"])
def test_a_folder_of_the_cache_that_is_something_else_is_one_line(place, capsys, folder, kind):
    cache, elsewhere = place / "cache", place / "elsewhere"
    os.rename(cache / folder, elsewhere)
    if kind == "link":
        (cache / folder).symlink_to(elsewhere)
    elif kind == "fifo":
        os.mkfifo(cache / folder)
    else:
        write(cache, folder)
    before = tree(place)
    for command in (["list"], ["prune", "--all"]):
        assert main(["--cache", f"{cache}", *command]) == 2
        assert f"error: {cache / folder}: is a" in capsys.readouterr().err
    with pytest.raises(CacheError, match=f"{folder}: is a"):
        open_checkpoint(place / "model", cache=cache)
    assert tree(place) == before


def test_a_file_that_cannot_be_removed_is_reported(place, capsys, monkeypatch):
    cache = place / "cache"
    real = os.unlink

    def unlink(name, **where):
        if name == tiles(cache)[0].name:
            raise PermissionError(13, "Permission denied", name)
        real(name, **where)

    monkeypatch.setattr(os, "unlink", unlink)
    assert main(["--cache", f"{cache}", "prune", "--all"]) == 2
    out, error = capsys.readouterr()
    assert (
        out == ""
        and f"1 cannot be removed, the first: {tiles(cache)[0]} (Permission denied)" in error
    )


def test_a_cache_of_an_earlier_version_is_marked(place, capsys):
    """An older cache has only the signature in its CACHEDIR.TAG, and the folders."""
    cache = place / "cache"
    (cache / TAG_FILE).write_text(KIND.mark.splitlines(keepends=True)[0])
    load(place / "model", cache)
    assert (cache / TAG_FILE).read_text() == KIND.mark
    assert main(["--cache", f"{cache}", "list"]) == 0


def test_the_benchmark_removes_its_own_files_by_name(tmp_path):
    from models.demos.qwen25_7b.bench_load import Bench

    with pytest.raises(CacheError, match="holds files and is not a cache"):
        write(tmp_path / "users", "checkpoint/config.json")
        BENCH.prepare(tmp_path / "users")
    assert BENCH.prepare(tmp_path / "bench") is None
    write(tmp_path / "bench", "checkpoint/config.json", "checkpoint/mine.txt", "mine.txt")
    KIND.prepare(tmp_path / "bench/cache")
    arguments = Namespace(mesh="N300", tp=2, recipe="bfp8", backend="auto", values=False, say=print)
    Bench(tmp_path / "bench", **vars(arguments)).remove()
    left = {path.name for path in (tmp_path / "bench").rglob("*") if path.is_file()}
    assert left == {"mine.txt", TAG_FILE, "lock"}

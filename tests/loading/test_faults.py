"""Faults of the cache or the checkpoint: a load gives right weights or one error line."""

import json
import os
import random
import resource
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from models.common.errors import UserError
from models.demos.qwen25_7b.loading.tiles import LEFT_FREE, TileFiles
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.weights import Checkpoint
from tests.loading.child import Child, checksums, loaded
from tests.loading.support import Messages, assert_same, leftovers, load, made, tiles

NORM = "model.layers.2.input_layernorm.weight"


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 0x10
    file.write_bytes(content)


def change(model: Path) -> None:
    """Change weights in place: exchange two values of a matrix, and replace one value of a norm."""
    with open(model / "model.safetensors", "r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))

        def edit(name: str, other) -> None:
            file.seek(8 + length + header[name]["data_offsets"][0])
            values = other(file.read(4))
            file.seek(-4, os.SEEK_CUR)
            file.write(values)

        edit("model.layers.1.mlp.down_proj.weight", lambda two: two[2:] + two[:2])
        edit(NORM, lambda two: b"\x00\x40" + two[2:])  # 2.0


# Damaged tiles


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: os.truncate(file, file.stat().st_size - 1),
        lambda file: os.truncate(file, 100),
        lambda file: os.truncate(file, 0),
        lambda file: file.write_bytes(file.read_bytes() + b"\0"),
        lambda file: flip(file, 20),  # in ttnn's header, which the library does not check
        lambda file: flip(file, file.stat().st_size // 2),
        lambda file: flip(file, -1),
        lambda file: file.unlink(),
    ],
    ids=[
        "last byte cut",
        "cut in the header",
        "empty",
        "a byte more",
        "header",
        "middle",
        "last byte",
        "gone",
    ],
)
def test_damaged_tiles_are_made_again(model, cache, right, damage):
    load(model, cache)
    for file in random.Random(0).sample(tiles(cache), 5):
        damage(file)
    lines = Messages()
    assert_same(load(model, cache, lines=lines), right)
    assert all("made again" in line for line in lines[:-1]) and "written to" in lines[-1]
    lines.clear()
    assert_same(load(model, cache, lines=lines), right)
    assert len(lines) == 1 and "mapped from" in lines[0]


def test_a_damaged_tile_whose_weights_were_deleted_is_one_line(model, cache):
    load(model, cache)
    (model / "model.safetensors").unlink()
    flip(tiles(cache)[3], -1)
    lines = Messages()
    with pytest.raises(UserError, match="holds neither model.safetensors"):
        load(model, cache, lines=lines)
    assert len(lines) == 1 and f"{cache}" in lines[0] and "damaged" in lines[0]
    with pytest.raises(UserError, match="weights were deleted"):
        load(model, cache)


def test_exchanged_tile_files_are_detected(model, cache, right):
    load(model, cache)
    first, second = tiles(cache)[:2]
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    assert_same(load(model, cache), right)


def test_a_file_that_is_no_tile_is_left_alone(model, cache, right):
    load(model, cache)
    stray = tiles(cache)[0].parent / "notes.txt"
    stray.write_text("mine")
    assert_same(load(model, cache), right)
    assert stray.read_text() == "mine"


# Damaged descriptions


@pytest.mark.parametrize(
    "content", [None, "", "{", "[]", "{}", '{"version": 1}', '{"version": 99, "files": {}}']
)
@pytest.mark.parametrize("which", ["checkpoint.json", "loads/*.json"])
def test_a_lost_or_damaged_description_is_written_again(model, cache, right, which, content):
    load(model, cache)
    (file,) = (cache / "models").glob(f"*/{which}")
    before = json.loads(file.read_text())
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    assert_same(load(model, cache), right)
    assert json.loads(file.read_text()) == before


def test_a_damaged_copy_of_the_config_is_not_used(model, cache, right):
    load(model, cache)
    (copy,) = (cache / "models").glob("*/files/config.json")
    copy.write_text(copy.read_text().replace('"rope_theta": ', '"rope_theta": 1'))
    assert_same(load(model, cache), right)
    assert copy.read_text() == (model / "config.json").read_text()


# Places that cannot be written


def test_a_full_disk_is_one_line_and_leaves_nothing(model, cache, right, monkeypatch):
    """The disk is full after seven tiles. ttnn's write raises its error for a full disk."""
    written = []

    def dump(file, tensor):
        if len(written) == 7:
            raise RuntimeError(
                'TT_FATAL @ x.cpp:47: written == bytes\ninfo:\nFailed to write: "No space left on device"\n'
            )
        written.append(file)
        real_dump(file, tensor)

    import ttnn

    real_dump = ttnn.dump_tensor
    monkeypatch.setattr(ttnn, "dump_tensor", dump)
    lines = Messages()
    assert_same(load(model, cache, lines=lines), right)
    assert len(lines) == 1 and "No space left on device" in lines[0] and "without it" in lines[0]
    assert not tiles(cache) and not leftovers(cache)


def test_a_write_that_the_system_cuts_short_leaves_nothing(model, cache, right):
    """Writes really fail: a resource limit allows no file longer than 64 KiB."""
    lines, shards = loaded(model, cache, short_files)
    assert shards == checksums(right)
    assert len(lines) == 1 and "cannot be written" in lines[0] and "File too large" in lines[0]
    assert not tiles(cache) and not leftovers(cache)


def test_too_little_disk_space_is_reported_before_anything_is_written(
    model, cache, right, monkeypatch
):
    monkeypatch.setattr(
        "models.demos.qwen25_7b.loading.load.free_bytes", lambda _: LEFT_FREE + 1_000_000
    )
    lines = Messages()
    assert_same(load(model, cache, lines=lines), right)
    assert len(lines) == 1 and "1.0 MB may be used" in lines[0] and not tiles(cache)


def test_a_cache_that_can_only_be_read_is_read(right):
    """The process may not write to the cache. It builds missing tiles without storing them."""
    with tempfile.TemporaryDirectory() as directory:  # readable by other users
        os.chmod(directory, 0o755)
        model = Path(shutil.copytree(SMALL_CHECKPOINT, f"{directory}/model"))
        cache = Path(directory) / "cache"
        load(model, cache)
        tiles(cache)[5].unlink()
        before = sorted(cache.rglob("*"))
        for path in (cache, *before):
            path.chmod(0o555 if path.is_dir() else 0o444)
        lines, shards = loaded(model, cache, become_nobody)
        for path in (cache, *before):
            path.chmod(0o755)
        assert shards == checksums(right)
        assert (
            len(lines) == 1
            and "cannot be written" in lines[0]
            and "what it has is used" in lines[0]
        )
        assert sorted(cache.rglob("*")) == before
        load(model, cache)
        for path in (cache, *cache.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        lines, shards = loaded(model, cache, become_nobody)
        for path in (cache, *cache.rglob("*")):
            path.chmod(0o755)
        assert shards == checksums(right)
        assert len(lines) == 2 and "mapped from" in lines[1]


def test_a_directory_that_cannot_be_made_is_named(model, tmp_path, right):
    (tmp_path / "file").write_text("")
    lines = Messages()
    assert_same(load(model, tmp_path / "file" / "cache", lines=lines), right)
    assert len(lines) == 1 and "cannot be written (Not a directory)" in lines[0]


# A checkpoint that changes


def test_a_checkpoint_replaced_under_its_name_is_noticed(model, cache, right):
    load(model, cache)
    change(model)
    expected = made(model)
    lines = Messages()
    assert_same(load(model, cache, lines=lines), expected)
    changed = [shard for shard in expected if not expected[shard].equal(right[shard])]
    assert 2 <= len(changed) <= 3, "two tensors were changed; what did not change is not made again"
    assert "written to" in lines[0]


def test_a_file_that_was_overwritten_with_its_old_date_is_noticed(model, cache):
    """A clock set back gives an old date, and so does a copy that keeps dates."""
    load(model, cache)
    before = (model / "model.safetensors").stat()
    change(model)
    os.utime(model / "model.safetensors", ns=(before.st_atime_ns, before.st_mtime_ns))
    after = (model / "model.safetensors").stat()
    assert (after.st_size, after.st_ino, after.st_mtime_ns) == (
        before.st_size,
        before.st_ino,
        before.st_mtime_ns,
    )
    assert_same(load(model, cache), made(model))


@pytest.mark.parametrize("date", [0, 4_000_000_000])
def test_any_file_date_is_accepted(model, cache, right, date):
    load(model, cache)
    for file in (model / "model.safetensors", *tiles(cache)):
        os.utime(file, (date, date))
    lines = Messages()
    assert_same(load(model, cache, lines=lines), right)
    assert "mapped from" in lines[-1]
    change(model)
    os.utime(model / "model.safetensors", (date, date))
    assert_same(load(model, cache), made(model))


def test_a_checkpoint_replaced_by_a_rename_is_noticed(model, cache, tmp_path):
    """The new file has the size and date of the old one."""
    other = Path(shutil.copytree(model, tmp_path / "other"))
    change(other)
    load(model, cache)
    stat = (model / "model.safetensors").stat()
    os.replace(other / "model.safetensors", model / "model.safetensors")
    os.utime(model / "model.safetensors", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert_same(load(model, cache), made(model))


def test_a_checkpoint_that_changes_while_it_is_read_ends_the_load(model, cache, monkeypatch):
    real = Checkpoint.tensor

    def tensor(self, name):
        found = real(self, name)
        if name == NORM:
            change(model)
        return found

    monkeypatch.setattr(Checkpoint, "tensor", tensor)
    with pytest.raises(UserError, match=f"{model}: its weights were changed while they were read"):
        load(model, cache)
    monkeypatch.undo()
    assert_same(load(model, cache), made(model))


# Killed processes, and concurrent processes


def test_builds_killed_twenty_times_leave_whole_tiles_and_end_in_a_right_load(model, cache, right):
    rng = random.Random(0)
    begin = time.monotonic()
    loaded(model, cache)
    whole = time.monotonic() - begin  # seconds, including the child's start
    finished = 0
    for _ in range(20):
        if tiles(cache):
            for file in rng.sample(tiles(cache), len(tiles(cache)) // 2):  # leaves tiles to build
                file.unlink()
        child = Child(model, cache)
        child.go()
        time.sleep(rng.uniform(0, 0.2 * whole))
        child.process.kill()
        child.process.join()
        finished += child.process.exitcode == 0
        files = TileFiles(cache)
        for file in files if cache.exists() else ():
            files.check(file)
    assert finished < 20, "every build was over before it was killed"
    assert_same(load(model, cache), right)
    assert not leftovers(cache), "what the killed processes left is removed by the next"


def test_two_processes_may_build_one_cache_at_once(model, cache, right):
    children = [Child(model, cache) for _ in range(3)]
    for child in children:
        child.go()
    assert [child.result()[1] for child in children] == [checksums(right)] * 3
    assert len(tiles(cache)) == len(right) and not leftovers(cache)
    lines = Messages()
    assert_same(load(model, cache, lines=lines), right)
    assert "mapped from" in lines[0]


def short_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))


def become_nobody() -> None:
    """Give up root's right to write anywhere, if the tests run as root."""
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)

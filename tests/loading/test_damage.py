"""Cache files of a wrong kind or of another shard give right weights or one error line."""

import json
import os
import shutil
from pathlib import Path

import pytest

from models.common.errors import UserError
from models.demos.qwen25_7b.loading.tiles import NAME
from models.demos.qwen25_7b.weights import Checkpoint
from tests.loading.support import Messages, assert_same, load, tiles


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "mine").write_text("mine")


def replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_link(path: Path) -> None:
    other = path.with_name("mine")
    path.rename(other)
    path.symlink_to(other)


KINDS = {"folder": replace_by_folder, "fifo": replace_by_fifo, "link": replace_by_link}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", ["tiles/*/*", "models/*/checkpoint.json", "models/*/loads/*"])
def test_a_file_of_another_kind_is_replaced_or_reported(model, cache, right, which, kind):
    load(model, cache)
    path = sorted(cache.glob(which))[0]
    KINDS[kind](path)
    lines = Messages()
    assert_same(load(model, cache, lines=lines), right)
    assert len(lines) <= 2
    assert kind != "folder" or (path / "mine").read_text() == "mine"


@pytest.mark.parametrize("which", ["tiles/??", "models/*", "models/*/loads", "models/*/files"])
@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_a_folder_of_another_kind_is_not_followed(model, cache, right, which, kind, tmp_path):
    load(model, cache)
    path = sorted(cache.glob(which))[0]
    elsewhere = path.rename(tmp_path / "elsewhere")
    before = sorted(elsewhere.rglob("*"))
    if kind == "link":
        path.symlink_to(elsewhere)
    else:
        os.mkfifo(path)
    assert_same(load(model, cache), right)
    assert sorted(elsewhere.rglob("*")) == before


def test_another_shards_bytes_under_a_key_are_detected(model, cache, right):
    """One shard's file gets another shard's name, with the checksum of its own bytes."""
    load(model, cache)
    first, second = tiles(cache)[:2]
    shutil.rmtree(cache / "models")  # no manifest has the right name
    key, crc32 = NAME.fullmatch(first.name)["key"], NAME.fullmatch(second.name)["crc32"]
    first.unlink()
    shutil.copy(second, first.with_name(f"{key}-{crc32}.tensorbin"))
    lines = Messages()
    assert_same(load(model, cache, lines=lines), right)
    assert any("damaged" in line and "made again" in line for line in lines)


@pytest.mark.parametrize(
    "changed",
    [
        {"tensors": None},
        {"weights": {"model.safetensors": None}},
        {"weights": {"model.safetensors": [1, 2]}},
        {"small": [1]},
        {"directory": 7},
        {"tensors": {"lm_head.weight": 5}},
    ],
)
def test_a_record_with_values_of_the_wrong_kind_is_written_again(model, cache, right, changed):
    load(model, cache)
    (file,) = cache.glob("models/*/checkpoint.json")
    before = json.loads(file.read_text())
    file.write_text(json.dumps(before | changed))
    assert_same(load(model, cache), right)
    assert json.loads(file.read_text()) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_of_another_kind_is_one_line(model, cache, kind):
    load(model, cache)
    KINDS[kind](cache / "lock")
    tiles(cache)[0].unlink()
    with pytest.raises(UserError, match=f"^{cache / 'lock'}: "):
        load(model, cache)


@pytest.mark.parametrize(
    "change", [os.link, lambda file, _: file.chmod(0o400)], ids=["link", "mode"]
)
def test_a_hard_link_to_the_weights_is_no_change(model, cache, right, monkeypatch, change):
    real, weights = Checkpoint.tensor, model / "model.safetensors"

    def tensor(self, name):
        monkeypatch.setattr(Checkpoint, "tensor", real)
        found = real(self, name)
        change(weights, model / "linked")
        return found

    monkeypatch.setattr(Checkpoint, "tensor", tensor)
    lines = Messages()
    assert_same(load(model, cache, lines=lines), right)
    assert len(lines) == 1 and "written to" in lines[0]

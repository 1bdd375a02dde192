"""A start answers with the weights of the checkpoint that it names, wherever that lies and whatever happened to it."""

import os
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save

from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.weights.cache import open_checkpoint
from tests.weights.support import CONFIG, WEIGHTS, assert_same, change, load, logged, made, shards_of


def put(directory: Path, value: float) -> None:
    """Make another checkpoint of the same files, with their size and time: one element has this value."""
    tensors = load_file(directory / WEIGHTS)
    tensors["model.embed_tokens.weight"][11, 13] = value
    (directory / WEIGHTS).write_bytes(save(tensors))
    os.utime(directory / WEIGHTS, (0, 0))


def test_tied_embeddings_are_packed_anew(model, cache, right):
    assert_same(load(model, cache), right)
    change(model, CONFIG, {"tie_word_embeddings": True})
    change(model, WEIGHTS, {"lm_head.weight": None})
    assert_same(load(model, cache), made(model))


def test_weights_of_another_format_are_told_and_not_the_cache_used(model, cache):
    load(model, cache)
    (model / WEIGHTS).rename(model / "pytorch_model.bin")
    with pytest.raises(UserError, match="holds pytorch_model.bin"):
        load(model, cache)


def test_contents_alone_decide(model, cache, tmp_path):
    """One element that changed is another checkpoint, even with the file's old time; a copy is the same one."""
    put(model, 1)
    load(model, cache)
    put(model, 2)
    with logged() as lines:
        load(model, cache)
    folders = {folder.name for folder in cache.glob("*/model-*")}
    assert len(folders) == 2 and any(f"also has {folder} (" in lines[0] for folder in folders)
    clone = Path(shutil.copytree(model, tmp_path / "clone", copy_function=shutil.copyfile))
    with logged() as lines:
        load(clone, cache)
    assert not lines and {folder.name for folder in cache.glob("*/*-*")} == folders


@pytest.mark.parametrize("home", ["gone", "unknown", "read-only"])
def test_a_home_that_cannot_be_used_means_no_cache_and_one_line(home, model, right, tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    blocked = tmp_path / "file"
    blocked.write_text("")
    if home == "unknown":
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.setenv("HOME", {"gone": f"{blocked}/home"}.get(home, f"{tmp_path}"))
    if home == "read-only":
        (tmp_path / ".cache").write_text("")  # root may write to every directory
    with logged() as lines:
        shards = shards_of(open_checkpoint(model))
    assert_same(shards, right)
    assert len(lines) == 1 and "XDG_CACHE_HOME" in lines[0] and "\n" not in lines[0]


def test_the_last_start_of_a_path_decides(model, cache, tmp_path):
    """Two paths have one checkpoint, then one has another. Without weights each has those of its last start."""
    first, second = model, Path(shutil.copytree(model, tmp_path / "b/model"))
    last = {}
    for path, value in ((first, 1), (second, 1), (first, 2), (first, 1), (first, 2)):
        put(path, value)
        last[path] = made(path)
        assert_same(load(path, cache), last[path])
    for path, shards in last.items():
        (path / WEIGHTS).unlink()
        assert_same(load(path, cache), shards)

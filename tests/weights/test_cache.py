"""The cache of packed weights: a second start, a start from the cache alone, and faults."""

import json
import os
import resource
import shutil
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from models.demos.qwen25_7b.config import BF16, BFP8_KV8
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.weights import cache as weights_cache
from models.demos.qwen25_7b.weights.cache import CACHE_NAME, open_checkpoint
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint
from tests.weights.support import WEIGHTS, assert_same, load, logged, made, packed, unfinished


@pytest.fixture
def packing_refused(monkeypatch):
    """packing_refused(): from then on, packing a shard or reading a weight fails."""

    def refuse():
        monkeypatch.setattr(weights_cache, "build_shard", lambda *_: pytest.fail("a shard was made"))
        monkeypatch.setattr(Checkpoint, "tensor", lambda *_: pytest.fail("weights were read"))

    return refuse


def tree(root: Path) -> dict[Path, tuple]:
    return {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in root.rglob("*")}


def test_the_second_load_maps_the_first_loads_files(model, cache, right, packing_refused):
    with logged() as lines:
        assert_same(load(model, cache), right)
    assert len(lines) == 1 and f" MB written to {cache / CACHE_NAME}" in lines[0]
    assert len(packed(cache)) == len(right) and not unfinished(cache)
    packing_refused()
    before = tree(cache)
    with logged() as lines:
        assert_same(load(model, cache), right)
    assert not lines and tree(cache) == before, "a cache that can only be read is enough"


def test_recipes_and_splits_share_a_folder_and_their_common_shards(model, cache):
    """bfp8 and bfp8-kv8 differ only in the KV cache. All splits share embedding and norms."""
    load(model, cache)
    first = set(packed(cache))
    load(model, cache, recipe=BFP8_KV8)
    assert set(packed(cache)) == first
    load(model, cache, tp=1)
    both = len(made(model, tp=1)) + len(first)
    assert len(packed(cache)) == both - (2 + 2 * Checkpoint.open(model).config.num_hidden_layers)
    assert_same(load(model, cache, recipe=BF16), made(model, recipe=BF16))
    assert len({file.parent for file in packed(cache)}) == 1


@pytest.mark.parametrize("changed", ["VERSION", "ttnn_version"])
def test_another_version_of_the_packing_or_of_ttnn_gets_a_new_folder(model, cache, right, monkeypatch, changed):
    load(model, cache)
    monkeypatch.setattr(weights_cache, changed, {"VERSION": -1, "ttnn_version": lambda: "9"}[changed])
    (old,) = {file.parent.name for file in packed(cache)}
    with logged() as lines:
        assert_same(load(model, cache), right)
    assert len(packed(cache)) == 2 * len(right) and f"also has {old} (" in lines[0]
    (model / WEIGHTS).unlink()
    monkeypatch.setattr(weights_cache, changed, {"VERSION": -2, "ttnn_version": lambda: "8"}[changed])
    with pytest.raises(UserError, match="holds neither"):
        load(model, cache)


# A start from the cache alone


@pytest.mark.parametrize("delete", [lambda model: (model / WEIGHTS).unlink(), shutil.rmtree], ids=["weights", "all"])
def test_the_checkpoint_may_be_deleted_once_it_is_in_the_cache(model, cache, right, packing_refused, delete):
    load(model, cache)
    config = open_checkpoint(model, cache=cache).config
    delete(model)
    packing_refused()
    assert_same(load(model, cache), right)
    opened = open_checkpoint(model, cache=cache)
    assert opened.config == config
    assert json.loads((opened.directory / "tokenizer.json").read_text())["model"]


@pytest.mark.parametrize("delete, error", [
    (lambda model: (model / WEIGHTS).unlink(), "holds neither model.safetensors"),
    (shutil.rmtree, "no directory here"),
])  # fmt: skip
def test_a_split_that_is_not_cached_needs_the_weights(model, cache, delete, error):
    load(model, cache)
    delete(model)
    with pytest.raises(UserError, match=f"{model}: {error}"):
        load(model, cache, tp=1)


# Damage


@pytest.mark.parametrize("left", [-1, 100, 0, None])
def test_damaged_shards_are_packed_again(model, cache, right, left):
    """left: bytes that are left of a file; None: it is gone."""
    load(model, cache)
    for file in packed(cache)[::7]:
        file.unlink() if left is None else os.truncate(file, left % file.stat().st_size)
    with logged() as lines:
        assert_same(load(model, cache), right)
    assert left is None or "damaged" in lines[0] and "packed again" in lines[0]
    with logged() as lines:
        assert_same(load(model, cache), right)
    assert not lines


# Places that cannot be written


def test_a_disk_that_fills_up_is_one_line_and_leaves_nothing_unfinished(model, cache, right):
    """Writes really fail: a resource limit allows no file longer than 64 KiB."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, limits[1]))
    try:
        with pytest.raises(UserError, match=f"{cache}.*cannot be written.*--no-cache") as refused:
            load(model, cache)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(refused.value)
    assert all(file.stat().st_size <= 64 << 10 for file in packed(cache)) and not unfinished(cache)
    assert_same(load(model, cache), right)


def test_too_little_disk_space_is_reported_before_anything_is_packed(model, cache, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(9, 9, 1_000_000))
    with pytest.raises(UserError, match=f"{cache}.* MB are to be written, 1.0 MB are free; make room"):
        load(model, cache)
    assert not packed(cache) and not unfinished(cache)


# Threads and processes


def test_loads_at_one_time_share_a_cache(model, cache, right):
    with ThreadPoolExecutor(3) as threads:
        for shards in threads.map(lambda _: load(model, cache), range(3)):
            assert_same(shards, right)
    assert len(packed(cache)) == len(right) and not unfinished(cache)

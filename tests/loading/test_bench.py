"""The benchmark's parts: a checkpoint of given dims, and a watch of time, memory and disk bytes."""

import mmap
import time
from dataclasses import replace

import pytest

from models.demos.qwen25_7b import bench_load
from models.demos.qwen25_7b.config import BFP8, QWEN25_7B, ParallelPlan
from models.demos.qwen25_7b.loading import bench
from models.demos.qwen25_7b.loading.bench import (
    SEVENTH,
    Watch,
    evict,
    make_checkpoint,
    packing,
    reading,
)
from models.demos.qwen25_7b.loading.inventory import inventory, shard_bytes
from models.demos.qwen25_7b.loading.tiles import KIND as TILE_CACHE
from models.demos.qwen25_7b.weights import Checkpoint

TINY = replace(
    SEVENTH,
    hidden_size=256,
    head_dim=32,
    intermediate_size=512,
    num_attention_heads=8,
    vocab_size=512,
    num_hidden_layers=2,
)


def test_a_checkpoint_of_given_dims_opens_and_no_two_tensors_are_alike(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "SHARD_BYTES", 1 << 20)
    make_checkpoint(tmp_path / "model", TINY)
    opened = Checkpoint.open(tmp_path / "model")
    assert opened.config == TINY and len(opened.files) > 2
    first = [tuple(opened.tensor(name).flatten()[:8].tolist()) for name in opened.headers]
    assert len(set(first)) == len(first)
    assert all(opened.tensor(name).isfinite().all() for name in opened.headers)


def test_an_emptied_cache_can_be_loaded_into(tmp_path):
    bench_load.KIND.prepare(tmp_path)
    measured = bench_load.Bench(tmp_path, "N150", 1, "bfp8", "golden", False, print)
    measured.remove()
    TILE_CACHE.check(measured.cache)
    assert TILE_CACHE.prepare(measured.cache) is None


def test_a_seventh_is_a_seventh():
    def size(config):
        return sum(map(shard_bytes, inventory(config, ParallelPlan.make(config, 2), BFP8)))

    assert size(SEVENTH) == pytest.approx(size(QWEN25_7B) / 7, rel=0.01)


def test_own_memory_excludes_mapped_files(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"x" * 50_000_000)
    with Watch() as usage, open(file, "rb") as stream:
        own = mmap.mmap(
            -1, 70_000_000, flags=mmap.MAP_PRIVATE
        )  # new pages: a tensor may reuse another tensor's address
        own.write(b"x" * len(own))
        with mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as content:
            assert set(content[:: mmap.PAGESIZE]) == {ord("x")}  # touches every page
            time.sleep(0.1)
    assert 70e6 <= usage.peak < 150e6 and 45e6 < usage.mapped < 60e6
    assert usage.wall >= 0.1 and usage.cpu > 0


def test_floors_are_times(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"x" * 10_000_000)
    evict([file])
    assert 0 < reading([file]) < 60
    assert 0 < packing(TINY, ParallelPlan.make(TINY, 2), BFP8) < 60

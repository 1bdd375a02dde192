"""Tensors reads each tensor once for all its shards and digests, and frees it after the last."""

import threading
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from models.demos.qwen25_7b.loading.builder import Tensors
from models.demos.qwen25_7b.loading.tiles import digest_of
from models.demos.qwen25_7b.weights import WeightShard, Projection, TensorRange


class Source:
    """A source of tensors that counts its reads."""

    def __init__(self):
        self.read = Counter()

    def tensor(self, name):
        self.read[name] += 1
        return torch.full((8, 8), float(ord(name)))


def shard(*names: str, first: int = 0) -> WeightShard:
    return WeightShard(
        Projection(0, tuple(TensorRange(name, first, 4) for name in names), 8), "bfloat16", True
    )


@pytest.fixture
def source():
    return Source()


def test_a_tensor_is_freed_after_its_last_shard(source):
    first, second = shard("a", "b"), shard("a", first=4)
    tensors = Tensors(source, {}, [first, second])
    held = {name: weakref.ref(tensors.get(name)) for name in "ab"}
    tensors.release(first)
    assert held["a"]() is not None and held["b"]() is None
    assert tensors.get("a") is held["a"]()
    tensors.release(second)
    assert held["a"]() is None
    assert source.read == {"a": 1, "b": 1}


def test_a_digest_is_computed_at_most_once(source):
    shards = [shard("a"), shard("a", first=4), shard("b")]
    tensors = Tensors(source, {"b": "known"}, shards)
    assert tensors.digest("b") == "known" and not source.read
    assert tensors.digest("a") == digest_of(torch.full((8, 8), 97.0))
    for made in shards:
        tensors.release(made)
    assert tensors.digest("a") == digest_of(torch.full((8, 8), 97.0)) and source.read == {"a": 1}
    assert tensors.digests.keys() == {"a", "b"}


def test_threads_that_read_one_tensor_share_it(source):
    start = threading.Barrier(8)
    tensors = Tensors(source, {}, [shard("a", first=i) for i in range(4)])

    def want(i):
        start.wait(30)
        return tensors.digest("a") if i % 2 else id(tensors.get("a"))

    with ThreadPoolExecutor(8) as threads:
        got = list(threads.map(want, range(8)))
    assert len(set(got)) == 2 and source.read == {"a": 1}

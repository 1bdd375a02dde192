"""The prefetcher builds shards ahead, in order, on several threads, within a memory bound.

Errors are raised in the calling thread.
"""

import threading
import time
from dataclasses import replace

import pytest

from models.demos.qwen25_7b.loading.prefetch import PREFETCH_BYTES, QueuedShard, Prefetcher
from models.demos.qwen25_7b.weights import WeightShard, Table


def orders(*working_bytes: int) -> list[QueuedShard]:
    shards = [
        WeightShard(Table(f"t{i}", (1, 1)), "bfloat16", False) for i in range(len(working_bytes))
    ]
    return [QueuedShard(shard, 10, working) for shard, working in zip(shards, working_bytes)]


class Made:
    """A stand-in for a builder. It records the order of its work and the bytes held at once."""

    def __init__(self, order):
        self.weights = {o.shard: o.working_bytes for o in order}
        self.begun, self.taken = [], set()
        self.lock = threading.Lock()

    def __call__(self, shard):
        with self.lock:
            self.begun.append(shard)
        return f"tensor of {shard.slice.tensor}"

    @property
    def held(self) -> int:
        return sum(self.weights[shard] for shard in self.begun if shard not in self.taken)


def wait_until(condition) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.001)


def test_shards_come_in_order_and_are_made_once():
    order = orders(*[1] * 50)
    make, seen = Made(order), []
    with Prefetcher(order, make, lambda done, total: seen.append((done, total))) as stream:
        assert [stream.build(o.shard) for o in order] == [f"tensor of t{i}" for i in range(50)]
    assert sorted(make.begun, key=lambda p: int(p.slice.tensor[1:])) == [o.shard for o in order]
    assert seen == [(10 * (i + 1), 500) for i in range(50)]


def test_the_next_shards_are_built_ahead_of_requests():
    order = orders(*[1] * 4)
    make = Made(order)
    with Prefetcher(order, make, lambda *_: None) as stream:
        assert not make.begun, "nothing is built before the first request"
        stream.build(order[0].shard)
        wait_until(lambda: len(make.begun) == 4)


def test_memory_stays_within_the_bound_unless_one_shard_is_larger():
    half = PREFETCH_BYTES // 2
    order = orders(half, half, 2 * PREFETCH_BYTES, 1, half)
    make = Made(order)
    with Prefetcher(order, make, lambda *_: None) as stream:
        for o in order:
            stream.build(o.shard)
            make.taken.add(o.shard)
            time.sleep(0.05)  # time for a build that would begin too early
            assert make.held <= PREFETCH_BYTES or make.begun[-1] == order[2].shard
            if order[2].shard in make.begun and order[2].shard not in make.taken:
                assert make.begun[-1] == order[2].shard, "something was made beside the largest"
    assert len(make.begun) == 5


def test_a_shard_in_use_counts_until_the_next_request():
    """Without a cache, a shard is host memory until it is sent. The embedding fills the bound."""
    order = [
        replace(o, bytes=o.working_bytes) for o in orders(PREFETCH_BYTES, 1, PREFETCH_BYTES // 2)
    ]
    make = Made(order)
    with Prefetcher(order, make, lambda *_: None) as stream:
        stream.build(order[0].shard)
        wait_until(lambda: len(make.begun) == 2)
        time.sleep(0.05)
        assert len(make.begun) == 2, "the third was begun while the first was being sent"
        stream.build(order[1].shard)
        wait_until(lambda: len(make.begun) == 3)


def test_several_shards_are_made_at_once():
    """Each build waits for the other one. A single thread would wait forever."""
    order = orders(1, 1)
    together = threading.Barrier(2)
    with Prefetcher(order, lambda shard: together.wait(30), lambda *_: None, threads=2) as stream:
        assert sorted(stream.build(o.shard) for o in order) == [0, 1]


def test_an_error_is_raised_where_that_shard_is_requested():
    order = orders(1, 1, 1)

    def make(shard):
        if shard == order[1].shard:
            raise ValueError("no such tensor")
        return shard

    with pytest.raises(ValueError, match="no such tensor"):
        with Prefetcher(order, make, lambda *_: None) as stream:
            assert stream.build(order[0].shard) == order[0].shard
            stream.build(order[1].shard)


def test_a_shard_outside_the_order_is_built_when_requested():
    order = orders(1, 1)
    with Prefetcher(order[:1], Made(order), lambda *_: None) as stream:
        assert stream.build(order[1].shard) == "tensor of t1"
        assert stream.build(order[0].shard) == "tensor of t0"


def test_leaving_early_stops_the_threads():
    order = orders(*[1] * 1000)
    make = Made(order)
    slow = threading.Event()

    def wait(shard):
        slow.wait(0.01)
        return make(shard)

    with Prefetcher(order, wait, lambda *_: None) as stream:
        stream.build(order[0].shard)
    assert len(make.begun) < 100

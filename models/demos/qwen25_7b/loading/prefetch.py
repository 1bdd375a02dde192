"""Threads make weight shards before the modules request them, within a bound of host memory."""

import ctypes
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Sequence

from models.demos.qwen25_7b.weights import WeightShard

if TYPE_CHECKING:
    import ttnn

# Host memory of all shards that are being made or wait to be sent. The 7B's embedding alone takes 1.09 GB.
PREFETCH_BYTES = 1_150_000_000
# After this many bytes of shards, freed memory returns to the system. Otherwise glibc keeps blocks below
# 32 MB in its arenas, and a T3K's shards have that size: 0.5 GB at the end of a 7B.
GIVE_BACK_BYTES = 200_000_000


@dataclass(frozen=True)
class QueuedShard:
    """A shard and its bytes."""

    shard: WeightShard
    bytes: int  # on a chip
    working_bytes: int  # on the host, while it is made


class Prefetcher:
    """A ShardBuilder. Threads make the shards in the order given; packing, hashing and reading release the
    GIL.

    A shard outside this order is made on request. progress: called with (bytes given out, bytes in all).
    """

    def __init__(
        self,
        order: Sequence[QueuedShard],
        make: Callable[[WeightShard], "ttnn.Tensor"],
        progress: Callable[[int, int], None],
        threads: int = len(os.sched_getaffinity(0)),
    ):
        self._waiting = deque(order)
        self._of = {ordered.shard: ordered for ordered in order}
        self._make = make
        self._progress = progress
        self._ready: dict[WeightShard, Future] = {}
        self._held = (
            0  # bytes of host memory: shards that are made or wait, and the last one given out
        )
        self._last = 0  # bytes of that one
        self._given = 0
        self._total = sum(ordered.bytes for ordered in order)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="loading")

    def __enter__(self) -> "Prefetcher":
        return self

    def __exit__(self, *_) -> None:
        self._threads.shutdown(cancel_futures=True)
        give_back()

    def build(self, shard: WeightShard) -> "ttnn.Tensor":
        self._work_ahead()
        if shard not in self._ready:
            return self._make(shard)
        tensor = self._ready.pop(shard).result()
        ordered = self._of[shard]
        self._held += ordered.bytes - ordered.working_bytes - self._last
        self._last = ordered.bytes
        if (self._given + ordered.bytes) // GIVE_BACK_BYTES > self._given // GIVE_BACK_BYTES:
            give_back()
        self._given += ordered.bytes
        self._work_ahead()
        self._progress(self._given, self._total)
        return tensor

    def _work_ahead(self) -> None:
        while self._waiting and (
            not self._ready or self._held + self._waiting[0].working_bytes <= PREFETCH_BYTES
        ):
            ordered = self._waiting.popleft()
            self._held += ordered.working_bytes
            self._ready[ordered.shard] = self._threads.submit(self._make, ordered.shard)


def give_back() -> None:
    """Return memory that was freed to the system."""
    ctypes.CDLL(None).malloc_trim(0)

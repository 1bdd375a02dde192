"""Pieces made ready ahead of whoever asks for them, on all cores, within a bound of host memory."""

import ctypes
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Sequence

from models.demos.qwen25_7b.weights import Piece

if TYPE_CHECKING:
    import ttnn

# Host memory of all pieces that are being made or wait to be sent. The embedding of the 7B takes 1.09 GB by itself.
AHEAD_BYTES = 1_150_000_000
# So many bytes given out, freed memory is given back: glibc keeps blocks below 32 MB, scattered over its arenas, and a T3K's
# pieces are of that size (0.5 GB were kept by the end of a 7B).
GIVE_BACK_BYTES = 200_000_000


@dataclass(frozen=True)
class Ordered:
    """A piece and what it weighs."""

    piece: Piece
    bytes: int  # on a chip
    working_bytes: int  # on the host, while it is made


class Stream:
    """A PieceSource. Threads make the pieces in the order given; packing, hashing and reading leave Python to others.

    A piece that was not announced is made when it is asked for. progress: called with (bytes given out, bytes in all).
    """

    def __init__(
        self,
        order: Sequence[Ordered],
        make: Callable[[Piece], "ttnn.Tensor"],
        progress: Callable[[int, int], None],
        threads: int = len(os.sched_getaffinity(0)),
    ):
        self._waiting = deque(order)
        self._of = {ordered.piece: ordered for ordered in order}
        self._make = make
        self._progress = progress
        self._ready: dict[Piece, Future] = {}
        self._held = 0  # bytes of host memory: pieces that are made or wait, and the last one given out
        self._last = 0  # bytes of that one
        self._given, self._total = 0, sum(ordered.bytes for ordered in order)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="loading")

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_) -> None:
        self._threads.shutdown(cancel_futures=True)
        give_back()

    def host(self, piece: Piece) -> "ttnn.Tensor":
        self._work_ahead()
        if piece not in self._ready:
            return self._make(piece)
        tensor = self._ready.pop(piece).result()
        ordered = self._of[piece]
        self._held += ordered.bytes - ordered.working_bytes - self._last
        self._last = ordered.bytes
        if (self._given + ordered.bytes) // GIVE_BACK_BYTES > self._given // GIVE_BACK_BYTES:
            give_back()
        self._given += ordered.bytes
        self._work_ahead()
        self._progress(self._given, self._total)
        return tensor

    def _work_ahead(self) -> None:
        while self._waiting and (not self._ready or self._held + self._waiting[0].working_bytes <= AHEAD_BYTES):
            ordered = self._waiting.popleft()
            self._held += ordered.working_bytes
            self._ready[ordered.piece] = self._threads.submit(self._make, ordered.piece)


def give_back() -> None:
    """Return memory that was freed to the system."""
    ctypes.CDLL(None).malloc_trim(0)

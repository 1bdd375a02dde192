"""Tensors: each is read once for all its pieces and their names in the cache, and let go after the last."""

import threading
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from models.demos.qwen25_7b.loading.identity import digest_of
from models.demos.qwen25_7b.loading.tensors import Tensors
from models.demos.qwen25_7b.weights import Piece, Projection, Taken


class Source:
    """Counts what is read."""

    def __init__(self):
        self.read = Counter()

    def tensor(self, name):
        self.read[name] += 1
        return torch.full((8, 8), float(ord(name)))


def piece(*names: str, first: int = 0) -> Piece:
    return Piece(Projection(0, tuple(Taken(name, first, 4) for name in names), 8), "bfloat16", True)


@pytest.fixture
def source():
    return Source()


def test_a_tensor_is_let_go_after_its_last_piece(source):
    first, second = piece("a", "b"), piece("a", first=4)
    tensors = Tensors(source, {}, [first, second])
    held = {name: weakref.ref(tensors.get(name)) for name in "ab"}
    tensors.release(first)
    assert held["a"]() is not None and held["b"]() is None
    assert tensors.get("a") is held["a"]()
    tensors.release(second)
    assert held["a"]() is None
    assert source.read == {"a": 1, "b": 1}


def test_a_digest_is_computed_once_and_not_at_all_if_it_is_known(source):
    pieces = [piece("a"), piece("a", first=4), piece("b")]
    tensors = Tensors(source, {"b": "known"}, pieces)
    assert tensors.digest("b") == "known" and not source.read
    assert tensors.digest("a") == digest_of(torch.full((8, 8), 97.0))
    for made in pieces:
        tensors.release(made)
    assert tensors.digest("a") == digest_of(torch.full((8, 8), 97.0)) and source.read == {"a": 1}
    assert tensors.digests.keys() == {"a", "b"}


def test_threads_that_want_one_tensor_share_it(source):
    start = threading.Barrier(8)
    tensors = Tensors(source, {}, [piece("a", first=i) for i in range(4)])

    def want(i):
        start.wait(30)
        return tensors.digest("a") if i % 2 else id(tensors.get("a"))

    with ThreadPoolExecutor(8) as threads:
        got = list(threads.map(want, range(8)))
    assert len(set(got)) == 2 and source.read == {"a": 1}

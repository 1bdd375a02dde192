"""The stream works ahead in order, on several threads, within its bound of memory; errors reach whoever asks."""

import threading
import time
from dataclasses import replace

import pytest

from models.demos.qwen25_7b.loading.stream import AHEAD_BYTES, Ordered, Stream
from models.demos.qwen25_7b.weights import Piece, Table


def orders(*working_bytes: int) -> list[Ordered]:
    pieces = [Piece(Table(f"t{i}", (1, 1)), "bfloat16", False) for i in range(len(working_bytes))]
    return [Ordered(piece, 10, working) for piece, working in zip(pieces, working_bytes)]


class Made:
    """Stands in for a maker: remembers the order of its work and how much was under way at once."""

    def __init__(self, order):
        self.weights = {o.piece: o.working_bytes for o in order}
        self.begun, self.taken = [], set()
        self.lock = threading.Lock()

    def __call__(self, piece):
        with self.lock:
            self.begun.append(piece)
        return f"tensor of {piece.part.tensor}"

    @property
    def held(self) -> int:
        return sum(self.weights[piece] for piece in self.begun if piece not in self.taken)


def wait_until(condition) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.001)


def test_pieces_come_in_order_and_are_made_once():
    order = orders(*[1] * 50)
    make, seen = Made(order), []
    with Stream(order, make, lambda done, total: seen.append((done, total))) as stream:
        assert [stream.host(o.piece) for o in order] == [f"tensor of t{i}" for i in range(50)]
    assert sorted(make.begun, key=lambda p: int(p.part.tensor[1:])) == [o.piece for o in order]
    assert seen == [(10 * (i + 1), 500) for i in range(50)]


def test_what_comes_next_is_made_while_nobody_asks():
    order = orders(*[1] * 4)
    make = Made(order)
    with Stream(order, make, lambda *_: None) as stream:
        assert not make.begun, "nothing is made before the first is asked for"
        stream.host(order[0].piece)
        wait_until(lambda: len(make.begun) == 4)


def test_no_more_is_held_than_the_bound_unless_one_piece_is_larger():
    half = AHEAD_BYTES // 2
    order = orders(half, half, 2 * AHEAD_BYTES, 1, half)
    make = Made(order)
    with Stream(order, make, lambda *_: None) as stream:
        for o in order:
            stream.host(o.piece)
            make.taken.add(o.piece)
            time.sleep(0.05)  # for whatever would be begun too early
            assert make.held <= AHEAD_BYTES or make.begun[-1] == order[2].piece
            if order[2].piece in make.begun and order[2].piece not in make.taken:
                assert make.begun[-1] == order[2].piece, "something was made beside the largest"
    assert len(make.begun) == 5


def test_what_was_given_out_counts_until_the_next_is_asked_for():
    """Without a cache it is host memory until it is sent, and the embedding is as much as the bound."""
    order = [replace(o, bytes=o.working_bytes) for o in orders(AHEAD_BYTES, 1, AHEAD_BYTES // 2)]
    make = Made(order)
    with Stream(order, make, lambda *_: None) as stream:
        stream.host(order[0].piece)
        wait_until(lambda: len(make.begun) == 2)
        time.sleep(0.05)
        assert len(make.begun) == 2, "the third was begun while the first was being sent"
        stream.host(order[1].piece)
        wait_until(lambda: len(make.begun) == 3)


def test_several_pieces_are_made_at_once():
    """Each waits for the other: one thread alone would wait for ever."""
    order = orders(1, 1)
    together = threading.Barrier(2)
    with Stream(order, lambda piece: together.wait(30), lambda *_: None, threads=2) as stream:
        assert sorted(stream.host(o.piece) for o in order) == [0, 1]


def test_an_error_reaches_whoever_asks_for_that_piece():
    order = orders(1, 1, 1)

    def make(piece):
        if piece == order[1].piece:
            raise ValueError("no such tensor")
        return piece

    with pytest.raises(ValueError, match="no such tensor"):
        with Stream(order, make, lambda *_: None) as stream:
            assert stream.host(order[0].piece) == order[0].piece
            stream.host(order[1].piece)


def test_a_piece_that_was_not_announced_is_made_when_it_is_asked_for():
    order = orders(1, 1)
    with Stream(order[:1], Made(order), lambda *_: None) as stream:
        assert stream.host(order[1].piece) == "tensor of t1"
        assert stream.host(order[0].piece) == "tensor of t0"


def test_leaving_early_stops_the_work():
    order = orders(*[1] * 1000)
    make = Made(order)
    slow = threading.Event()

    def wait(piece):
        slow.wait(0.01)
        return make(piece)

    with Stream(order, wait, lambda *_: None) as stream:
        stream.host(order[0].piece)
    assert len(make.begun) < 100

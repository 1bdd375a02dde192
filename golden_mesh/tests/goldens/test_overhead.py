"""The time that the golden mesh adds to an op, beside the library's and torch's time."""

import time
import timeit
from functools import partial

import torch
import ttnn

from golden_mesh.mesh import dispatch
from golden_mesh.registry import GOLDENS


def milliseconds(function) -> float:
    """The least processor time of this thread of several calls: other programs lengthen it."""
    return 1000 * min(timeit.repeat(function, timer=time.thread_time, repeat=200, number=1))


def test_an_op_on_two_chips_has_less_than_a_millisecond_of_overhead(chips, record_property):
    """The bound grows with the number of chips."""
    a, b = (chips.put(chips.draw(1, 1, 32, 32)) for _ in range(2))
    x, y = (torch.randn(1, 1, 32, 32).bfloat16() for _ in range(2))
    compute = partial(GOLDENS["ttnn.add"].function, out=dispatch.slot_of(a), dtypes=None)

    def own_work():
        dispatch.REAL_CALL(ttnn.add, a, b)
        for _ in range(chips.count):
            compute(x, y)

    own_work()
    overhead = milliseconds(lambda: ttnn.add(a, b)) - milliseconds(own_work)
    record_property("overhead_ms", round(overhead, 3))
    assert overhead < max(1, chips.count / 2), f"{overhead:.3f} ms an op"

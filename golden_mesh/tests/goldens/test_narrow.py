"""ttnn.narrow: views of parts of a tensor. Views may have one address."""

import pytest
import torch
import ttnn

from golden_mesh.arithmetic.engine import subtract
from golden_mesh.errors import GoldenError
from goldens.support import sharded

WIDTH, HALF = 512, 256


@pytest.fixture
def halves(chips):
    """The chips' values, the tensor on eight cores in a row, and views of its first and last four shards."""
    values = chips.draw(1, 1, 32, WIDTH)
    whole = chips.put(values, memory_config=sharded("WIDTH", (32, WIDTH // 8), 8))
    return values, whole, ttnn.narrow(whole, -1, 0, HALF), ttnn.narrow(whole, -1, HALF, HALF)


def test_views_read_their_part(chips, halves):
    values, whole, first, last = halves
    assert first.buffer_address() == last.buffer_address() == whole.buffer_address()
    for view, columns in ((first, slice(0, HALF)), (last, slice(HALF, None)), (whole, slice(None))):
        copy = ttnn.add(view, 0.0, memory_config=ttnn.DRAM_MEMORY_CONFIG)
        for got, v in zip(chips.get(copy), values, strict=True):
            assert got.float().equal(v[..., columns])
    product = ttnn.mul(first, last, memory_config=sharded("WIDTH", (32, HALF // 8), 8))
    for got, v in zip(chips.get(product), values, strict=True):
        assert got.float().equal((v[..., :HALF] * v[..., HALF:]).bfloat16().float())


def test_a_capture_keeps_its_views(chips, halves):
    """A replay reads the parts after a new write to the tensor and after other calls of narrow."""
    values, whole, first, last = halves
    memory = sharded("WIDTH", (32, HALF // 8), 8)

    def step():
        doubled = ttnn.add(whole, whole, memory_config=whole.memory_config())
        parts = [ttnn.narrow(doubled, -1, at, HALF) for at in (0, HALF)]
        result = ttnn.sub(*parts, memory_config=memory)
        ttnn.deallocate(doubled)
        return result

    ttnn.deallocate(step())
    trace = ttnn.begin_trace_capture(chips.device, cq_id=0)
    result = step()
    ttnn.end_trace_capture(chips.device, trace, cq_id=0)
    ttnn.execute_trace(chips.device, trace, cq_id=0)
    ttnn.release_trace(chips.device, trace)
    for got, v in zip(chips.get(result), values, strict=True):
        assert got.float().equal(subtract(2 * v[..., :HALF], 2 * v[..., HALF:]).float())


def test_a_tensor_in_a_freed_tensors_place_is_whole(chips, halves):
    values, whole, first, last = halves
    address, view_memory = whole.buffer_address(), last.memory_config()
    ttnn.deallocate(whole)
    other = chips.draw(1, 1, 32, HALF)
    again = chips.put(other, memory_config=view_memory)  # the cores and shape of the view that was
    assert again.buffer_address() == address, "no longer the case that this test is for"
    for got, v in zip(chips.get(again), other, strict=True):
        assert got.float().equal(v)


def test_a_view_is_not_written_in_place(chips, halves):
    _, _, first, _ = halves
    with pytest.raises(GoldenError, match="part"):
        ttnn.add_(first, 1.0)


def test_views_whose_cores_the_library_reorders_are_refused(chips):
    """The part has nineteen cores from the middle of a row. The library lists the rest of that row last."""
    whole = chips.put(torch.zeros(1, 1, 32, 38 * 32), memory_config=sharded("WIDTH", (32, 32), 38))
    assert ttnn.narrow(whole, -1, 0, 19 * 32).shape[-1] == 19 * 32
    with pytest.raises(GoldenError, match="19 cores from core 19"):
        ttnn.narrow(whole, -1, 19 * 32, 19 * 32)

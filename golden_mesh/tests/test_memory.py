"""Golden memory behaves as a chip's: a read depends on the address, and the read of a lost value is an error that names
it.
"""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
import ttnn

import golden_mesh
from golden_mesh.errors import GoldenError
from golden_mesh.mesh.memory import GoldenMemory, Slot
from goldens.support import kernel


def slot(address, size=64, shape=(4, 8), devices=(0, 1), buffer_type=ttnn.BufferType.DRAM) -> Slot:
    places = tuple((0, d) for d in devices)
    return Slot(devices, places, buffer_type, address, size, shape, ttnn.bfloat16)


def both(value: float) -> list[torch.Tensor]:
    """A value on each of two chips."""
    return [torch.full((4, 8), value), torch.full((4, 8), value)]


@pytest.fixture
def memory():
    """GoldenMemory alone."""
    return GoldenMemory()


@pytest.mark.parametrize(
    "address, extent, evicts",
    [(0, 64, False), (36, 64, False), (0, 101, True), (37, 64, True), (101, 8, True), (120, 1, True), (128, 64, True),
     (191, 64, True), (192, 64, False), (0, 1024, True)],
)  # fmt: skip
def test_an_allocation_evicts_what_it_overlaps_and_nothing_else(memory, address, extent, evicts):
    old, new = slot(100, 92), slot(address, extent)
    beside = [slot(2048 + 64 * i) for i in range(4)]
    for place in (old, *beside):
        memory.write(place, both(1))
    memory.write(new, both(2))
    memory.write(slot(2048 + 32, 128), both(3))
    assert memory.read(new)[1].equal(both(2)[1]) and memory.read(beside[3])[0].equal(both(1)[0])
    for place in beside[:3]:
        with pytest.raises(GoldenError, match="overwritten"):
            memory.read(place)
    if evicts:
        with pytest.raises(GoldenError, match="chip 0.*DRAM address 0x64"):
            memory.read(old)
    else:
        assert memory.read(old)[1].equal(both(1)[1])


def test_chips_and_buffer_types_are_apart(memory):
    places = [slot(0, devices=(0,)), slot(0, devices=(1,)), slot(0, devices=(0,), buffer_type=ttnn.BufferType.L1)]
    for value, place in enumerate(places):
        memory.write(place, both(value)[:1])
    assert [read[0, 0].item() for read in memory.read(slot(0))] == [0, 1]


@pytest.mark.parametrize(
    "base, view, seen",
    [
        ((2, 64, 8), (4, 7, 8), lambda x: x.view(4, 32, 8)[:, :7]),  # cuts off rows of every tile
        ((2, 4, 8), (8, 8), lambda x: x.view(8, 8)),
        ((2, 4, 8), (2, 3, 8), lambda x: x[:, :3]),
        ((2, 4, 8), (2, 5, 8), None),
        ((2, 4, 8), (2, 4, 7), lambda x: x[:, :, :7]),  # of the same tile
        ((2, 4, 40), (2, 4, 7), None),
        ((2, 4, 8), (3, 3, 8), None),
    ],
)
def test_a_view_must_keep_its_elements_or_cut_off_rows_and_padding(memory, base, view, seen):
    value = torch.randn(base)
    memory.write(slot(0, shape=base), [value, value])
    if seen is not None:
        assert memory.read(slot(0, shape=view))[0].equal(seen(value))
    else:
        with pytest.raises(GoldenError, match="0x0"):
            memory.read(slot(0, shape=view))


def test_a_write_in_place_changes_only_tensors_at_the_same_address(memory):
    shared = torch.ones(4, 8)
    for address in (0, 64, 128):  # an op moved the data: one torch tensor in three places
        memory.write(slot(address), [shared, shared])
    memory.exclusive(slot(0), [0, 1]).fill_(7)
    assert memory.read(slot(0))[0] is memory.read(slot(0))[1], "replicas stay one tensor"
    memory.exclusive(slot(128), [1]).fill_(8)
    seen = [[value[0, 0].item() for value in memory.read(slot(at))] for at in (0, 64, 128)]
    assert seen == [[7, 7], [1, 1], [1, 8]]


def test_a_freed_tensor_is_refused_and_its_memory_belongs_to_the_next(golden):
    x = golden.put([torch.rand(1, 1, 256, 256) for _ in range(golden.chips)])
    address, before = x.buffer_address(), golden_mesh.host_bytes()
    ttnn.deallocate(x)
    assert before - golden_mesh.host_bytes() == golden.chips * 256 * 256 * 2
    for use in (golden.get, ttnn.relu):
        with pytest.raises(RuntimeError, match="not allocated"):
            use(x)
    y = golden.full(2, 1, 1, 256, 256)
    assert y.buffer_address() == address and golden.holds(y, 2)


def test_views_read_the_memory_of_their_base(golden):
    base = (torch.arange(64 * 32).view(1, 1, 64, 32) % 128).bfloat16()
    x = golden.put(base)
    halves, rows = ttnn.reshape(x, (1, 2, 32, 32)), ttnn.reshape(x, (1, 1, 60, 32), (1, 1, 64, 32))
    assert x.buffer_address() == halves.buffer_address() == rows.buffer_address()
    for factor in (1, 2):
        ttnn.copy_host_to_device_tensor(golden.host(factor * base), x)
        assert golden.holds(halves, (factor * base).view(1, 2, 32, 32))
        assert golden.holds(rows, (factor * base)[:, :, :60])


@pytest.mark.parametrize("shape", ((2, 2), (1, 2, 40, 32), (3, 70)))
def test_a_view_of_the_padded_shape_shows_the_padding(golden, shape):
    x = torch.randn(shape).bfloat16()
    t = ttnn.fill_implicit_tile_padding(golden.put(x), fill_value=2.0)
    whole = tuple(t.padded_shape)
    edges = (0, whole[-1] - shape[-1], 0, whole[-2] - shape[-2])
    assert golden.holds(ttnn.reshape(t, whole, whole), F.pad(x, edges, value=2.0))


@pytest.mark.parametrize("dtype", (ttnn.int32, ttnn.uint16, ttnn.bfloat16))
def test_a_pad_within_a_tile_writes_its_inputs_padding_alone(golden, dtype):
    x = torch.arange(2000).reshape(1, 1, 40, 50) % 200
    t = golden.put(x, dtype=dtype)
    padded = ttnn.pad(t, [(0, 0), (0, 0), (0, 0), (0, 14)], 7)
    assert padded.buffer_address() == t.buffer_address()  # a simulated N150's, too, and its values
    assert (
        golden.holds(padded, F.pad(x, (0, 14), value=7)) and golden.holds(t, x) and golden.holds(ttnn.add(t, t), 2 * x)
    )


def test_memory_stays_bounded_over_a_long_loop(golden):
    """And replicas are one tensor on the host, also after an op."""
    shards = golden.put([torch.zeros(1, 1, 128, 128)] * golden.chips)
    replicas = golden.put(torch.zeros(1, 1, 128, 128))
    for x, values in ((shards, golden.chips), (replicas, 1)):
        before = most = golden_mesh.host_bytes()
        for _ in range(100):
            x = ttnn.add(x, 1.0)  # the test deallocates nothing
            most = max(most, golden_mesh.host_bytes())
        assert golden.holds(x, 100)
        assert most - before <= 4 * values * 128 * 128 * 2


@pytest.mark.parametrize("dtype", [ttnn.bfloat8_b, ttnn.bfloat4_b])
def test_products_read_large_block_floats_as_codes_and_other_ops_their_values(golden, dtype):
    """Also row by row: a row alone, and equal rows, which are multiplied once."""
    drawn = torch.randn(1, 1, 1024, 1056) * 4.0 ** torch.randn(1024, 1)
    drawn[0, 0, 7, 32:48] = 0
    values = ttnn.from_torch(drawn, dtype, layout=ttnn.TILE_LAYOUT).to_torch()  # the library's own
    weight, plain, rows = golden.put(drawn, dtype=dtype), golden.put(values), torch.randn(1, 1, 32, 1024).bfloat16()
    rows[:, :, 3:20] = rows[:, :, 3:4]
    for fidelity in ("LoFi", "HiFi3"):
        product = partial(ttnn.linear, dtype=ttnn.float32, compute_kernel_config=kernel(fidelity))
        whole = golden.get(product(golden.put(rows), weight))[0]
        assert whole.equal(golden.get(product(golden.put(rows), plain))[0])
        for row in (0, 3, 19, 31):
            alone = product(golden.put(rows[:, :, row : row + 1]), weight)
            assert golden.get(alone)[0].equal(whole[:, :, row : row + 1])
    before = golden_mesh.host_bytes()
    assert golden.holds(weight, values)
    assert golden_mesh.host_bytes() - before == values.numel() * 7 // 8, "from 9 bytes for 8 values to 16"
    assert golden.holds(ttnn.typecast(weight, ttnn.bfloat16), values)


def test_an_empty_tensor_outlives_others_at_its_address(golden):
    a, b = (golden.put(torch.zeros(0, 3)) for _ in range(2))
    c = ttnn.multiply(a, b)
    ttnn.deallocate(a)
    assert golden.holds(c, torch.zeros(0, 3)) and golden.holds(b, torch.zeros(0, 3))
    assert golden.holds(ttnn.concat([b, golden.full(1.0, 2, 3)], 0), 1)


@pytest.mark.parametrize("a, b", [((3, 0), (0, 5)), ((2, 3, 0), (2, 0, 5)), ((0, 4), (4, 5)), ((3, 4), (4, 0))])
def test_a_matmul_of_empty_tensors_is_zero(golden, a, b):
    x, y = (golden.put(torch.ones(shape)) for shape in (a, b))
    want = torch.ones(a) @ torch.ones(b)
    assert golden.holds(ttnn.matmul(x, y), want)
    assert golden.holds(ttnn.linear(x, y, bias=golden.full(1.0, 1, b[-1])), want + 1)

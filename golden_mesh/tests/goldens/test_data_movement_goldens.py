"""Shapes: reshaping, slicing, joining, padding and reordering lose nothing and mix nothing up."""

import pytest
import torch
import ttnn

from golden_mesh.arithmetic.engine import subtract
from golden_mesh.errors import GoldenError
from goldens.support import ROW_MAJOR, TILE, Put, assert_same, block_sharded, examples, ints, sharded

ODD, WHOLE, TILES, THREE = (1, 2, 33, 45), (1, 2, 64, 96), (1, 1, 32, 64), (1, 3, 32, 64)
FLAT = (33, 45)
ROWS = Put((1, 2, 32, 32), layout=ROW_MAJOR)
PADDED = "F.pad(x, (0, 16, 0, 32), value=1.5)"
FIRST = [0, 0, 0, 0]

IN_BOTH_LAYOUTS = {
    "ttnn.reshape(x, (1, 1, 96, 64))": ("x.reshape(1, 1, 96, 64)", THREE),
    "ttnn.reshape(x, (96, 64))": ("x.reshape(96, 64)", THREE),
    "ttnn.reshape(x, (1, 3, 32, 64))": ("x", THREE),
    "ttnn.reshape(x, (1, 1, 48, 128))": ("x.reshape(1, 1, 48, 128)", THREE),
    "ttnn.reshape(x, (3, 1, -1, 64))": ("x.reshape(3, 1, 32, 64)", THREE),
    "ttnn.slice(x, (0, 0, 32, 0), (1, 2, 64, 96))": ("x[:, :, 32:]", WHOLE),
    "ttnn.slice(x, (0, 1, 5, 32), (1, 2, 37, 64))": ("x[:, 1:, 5:37, 32:64]", WHOLE),
    "ttnn.slice(x, (0, 0, 0, 0), (1, 2, 1, 7))": ("x[:, :, :1, :7]", WHOLE),
    "ttnn.slice(x, (0, 0, 0, 0), (1, 2, 64, 96), (1, 1, 2, 1))": ("x[:, :, ::2]", WHOLE),
}
IN_TILES = {
    "ttnn.reshape(x, (1, 5, 9, 7))": ("x.reshape(1, 5, 9, 7)", (1, 3, 15, 7)),
    "ttnn.reshape(x, (1, 1, 60, 32), skip_padding_fill=True)": ("x.reshape(1, 1, 60, 32)", (1, 1, 30, 64)),
    "x.reshape(1, 1, 96, 64)": ("x.reshape(1, 1, 96, 64)", THREE),
    "ttnn.reshape(x, (1, 1, 8, 64), (1, 1, 32, 64))": ("x[:, :, :8]", TILES),  # cuts padding rows
    "ttnn.reshape_on_device(x, 1, 2, 32, 64)": ("x.reshape(1, 2, 32, 64)", (1, 1, 64, 64)),
    "ttnn.reshape_on_device(x, 1, -1, 32, 64)": ("x.reshape(1, 2, 32, 64)", (1, 1, 64, 64)),
    "ttnn.unsqueeze(x, 0)": ("x[None]", FLAT),
    "ttnn.squeeze(x, 1)": ("x[:, 0]", (33, 1, 45)),
    "ttnn.unsqueeze_to_4D(x)": ("x[None, None]", FLAT),
    "ttnn.slice(x, starts=[0, 0, 3, 0], ends=[1, 2, 40, 96], steps=[1, 1, 2, 1])": ("x[:, :, 3:40:2]", WHOLE),
    "x[:, 1:2, 3:40, :]": ("x[:, 1:2, 3:40]", WHOLE),
    "x[..., 3:7, 10:]": ("x[..., 3:7, 10:]", WHOLE),
    "x[0, 0]": ("x[0, 0]", WHOLE),
    "ttnn.multiply_(ttnn.slice(x, FIRST, [1, 1, 32, 64]), 2.0)": ("x[:, :, :32] * 2", (1, 1, 64, 64)),  # not in x
    # Between tensors: slice_dim and num_devices give the result's shape.
    "ttnn.slice(x, y, z, slice_dim=2, num_devices=2)":
        ("x[:, :, 32:]", (1, 1, 64, 128), ints([0, 0, 32, 0]), ints([1, 1, 64, 128])),
    "ttnn.pad(x, [1, 2, 64, 48], FIRST, 1.5)": (PADDED, ROWS),
    "ttnn.pad(x, padding=[(0, 0), (0, 0), (0, 32), (0, 16)], value=1.5)": (PADDED, ROWS),
    "ttnn.pad(x, [(0, 0), (0, 1), (0, 31), (0, 19)], 0.0)": ("F.pad(x, (0, 19, 0, 31, 0, 1))", ODD),
    "ttnn.pad(x, [(0, 0), (0, 1), (0, 31), (0, 19)], -2.5)": ("F.pad(x, (0, 19, 0, 31, 0, 1), value=-2.5)", ODD),
    # A mask's usual value rounds to -inf in bfloat16, as in the library.
    "ttnn.pad(x, [(0, 0), (0, 0), (0, 0), (0, 32)], -3.4e38)": ("F.pad(x, (0, 32), value=-torch.inf)", TILES),
    "ttnn.repeat(x, (1, 2, 3, 1))": ("x.repeat(1, 2, 3, 1)", TILES),
    "ttnn.repeat_interleave(x, 3, 1)": ("x.repeat_interleave(3, 1)", TILES),
    "ttnn.expand(x, (1, 4, 32, 64))": ("x.expand(1, 4, 32, 64)", TILES),
    "ttnn.experimental.broadcast_to(x, ttnn.Shape([1, 2, 32, 64]))": ("x.expand(1, 2, 32, 64)", (1, 1, 1, 64)),
    "ttnn.permute(x, (0, 2, 1, 3))": ("x.permute(0, 2, 1, 3)", ODD),
    "ttnn.permute(x, (0, 1, 3, 2))": ("x.mT", ODD),
    "ttnn.permute(x, (3, 2, 1, 0))": ("x.permute(3, 2, 1, 0)", ODD),
    "ttnn.transpose(x, 1, 2)": ("x.transpose(1, 2)", ODD),
    "ttnn.transpose(x, -2, -1)": ("x.mT", ODD),
    "ttnn.experimental.transpose_rm(x)": ("x.mT", Put(WHOLE, layout=ROW_MAJOR)),
    "ttnn.experimental.convert_to_chw(x)": ("x.mT", Put((1, 1, 128, 4), memory_config=sharded("HEIGHT", (64, 32), 2))),
    "ttnn.experimental.convert_to_hwc(x)[..., :3]":
        ("x.mT.reshape(1, 1, 128, 3)", Put((1, 2, 3, 64), None, ROW_MAJOR, sharded("WIDTH", (6, 32), 2))),
    "ttnn.concat([x, y], dim=0)": ("torch.cat([x, y], 0)", ODD, ODD),
    "ttnn.concat([x, y], dim=1)": ("torch.cat([x, y], 1)", ODD, ODD),
    "ttnn.concat([x, y], dim=-1)": ("torch.cat([x, y], -1)", ODD, ODD),
    # Groups interleave: the first half of x, the first half of y, the second halves.
    "ttnn.concat([x, y], dim=3, groups=2, memory_config=sharded('HEIGHT', (32, 96), 2))": (
        "torch.cat((x[..., :16], y[..., :32], x[..., 16:], y[..., 32:]), -1)",
        Put((1, 1, 64, 32), None, ROW_MAJOR, sharded("HEIGHT", (32, 32), 2)),
        Put((1, 1, 64, 64), None, ROW_MAJOR, sharded("HEIGHT", (32, 64), 2)),
    ),
    "ttnn.stack([x, y], 1)": ("torch.stack([x, y], 1)", (2, 32, 64), (2, 32, 64)),
    "ttnn.split(x, 32, 3)": ("x.split(32, 3)", WHOLE),
    "ttnn.chunk(x, 3, 3)": ("x.chunk(3, 3)", WHOLE),
    "ttnn.roll(x, 3, 2)": ("torch.roll(x, 3, 2)", WHOLE),
    "ttnn.roll(x, [3, 1], [2, 3])": ("torch.roll(x, [3, 1], [2, 3])", WHOLE),
    "ttnn.roll(x, 7)": ("torch.roll(x, 7)", WHOLE),
}  # fmt: skip

test_in_both_layouts = examples(IN_BOTH_LAYOUTS, globals(), {"layout": (TILE, ROW_MAJOR)}, error=0)
test_in_tiles = examples(IN_TILES, globals(), error=0)


def test_view_and_its_base_are_one_memory(chips):
    x = chips.draw(1, 3, 32, 64)
    base = chips.put(x)
    view = ttnn.view(base, (1, 1, 96, 64))
    ttnn.multiply_(view, 3.0)
    assert_same(base, [(v * 3).bfloat16() for v in x])
    assert_same(view, [(v * 3).bfloat16().reshape(1, 1, 96, 64) for v in x])


def test_reshape_may_show_the_rows_that_pad_a_tile(chips):
    """A KV head's queries viewed as their whole tile: a view moves no data."""
    x = chips.draw(1, 2, 7, 64)
    base = ttnn.neg(chips.put([-v for v in x]))
    view = ttnn.reshape(base, (1, 2, 32, 64), (1, 2, 32, 64))
    assert view.buffer_address() == base.buffer_address()
    assert_same([v[:, :, :7] for v in chips.get(view)], x)
    assert all(v[:, :, 7:].isnan().all() for v in chips.get(view)), "an op leaves these rows unknown"


def test_a_part_of_a_tensor_is_written(chips):
    chips.check(
        lambda x, part: ttnn.experimental.slice_write(
            part, x, [0, 0, 4, 0], [1, 1, 12, 64], [1, 1, 1, 1]
        ),
        lambda x, part: torch.cat((x[:, :, :4], part, x[:, :, 12:]), 2),
        (1, 1, 32, 64), (1, 1, 8, 64), layout=ROW_MAJOR, in_place=True, error=0,
    )  # fmt: skip


WIDTH, HALF = 512, 256


@pytest.fixture
def halves(chips):
    """The chips' values, the tensor on eight cores, and views of its first and last four shards."""
    values = chips.draw(1, 1, 32, WIDTH)
    whole = chips.put(values, memory_config=sharded("WIDTH", (32, WIDTH // 8), 8))
    return values, whole, ttnn.narrow(whole, -1, 0, HALF), ttnn.narrow(whole, -1, HALF, HALF)


def test_narrowed_views_read_their_part(chips, halves):
    values, whole, first, last = halves
    assert first.buffer_address() == last.buffer_address() == whole.buffer_address()
    for view, columns in ((first, slice(0, HALF)), (last, slice(HALF, None)), (whole, slice(None))):
        copy = ttnn.add(view, 0.0, memory_config=ttnn.DRAM_MEMORY_CONFIG)
        assert_same(copy, [v[..., columns] for v in values])
    product = ttnn.mul(first, last, memory_config=sharded("WIDTH", (32, HALF // 8), 8))
    assert_same(product, [(v[..., :HALF] * v[..., HALF:]).bfloat16() for v in values])


def test_a_capture_keeps_its_narrowed_views(chips, halves):
    """A replay reads the parts after a new write to the tensor and after other calls of narrow."""
    values, whole, first, last = halves

    def step():
        doubled = ttnn.add(whole, whole, memory_config=whole.memory_config())
        parts = [ttnn.narrow(doubled, -1, at, HALF) for at in (0, HALF)]
        result = ttnn.sub(*parts, memory_config=sharded("WIDTH", (32, HALF // 8), 8))
        ttnn.deallocate(doubled)
        return result

    ttnn.deallocate(step())
    trace, result = chips.capture(step)
    ttnn.execute_trace(chips.device, trace, cq_id=0)
    ttnn.release_trace(chips.device, trace)
    assert_same(result, [subtract(2 * v[..., :HALF], 2 * v[..., HALF:]).float() for v in values])


def test_a_tensor_in_a_narrowed_tensors_place_is_whole(chips, halves):
    _, whole, _, last = halves
    address, view_memory = whole.buffer_address(), last.memory_config()
    ttnn.deallocate(whole)
    other = chips.draw(1, 1, 32, HALF)
    again = chips.put(other, memory_config=view_memory)  # the cores and shape of the view that was
    assert again.buffer_address() == address, "no longer the case that this test is for"
    assert_same(again, other)


def test_narrowed_views_that_are_refused(chips, halves):
    """In place, and of cores from a row's middle: the library lists the rest of that row last."""
    with pytest.raises(GoldenError, match="part"):
        ttnn.add_(halves[2], 1.0)
    whole = chips.put(torch.zeros(1, 1, 32, 38 * 32), memory_config=sharded("WIDTH", (32, 32), 38))
    assert ttnn.narrow(whole, -1, 0, 19 * 32).shape[-1] == 19 * 32
    with pytest.raises(GoldenError, match="19 cores from core 19"):
        ttnn.narrow(whole, -1, 19 * 32, 19 * 32)


@pytest.mark.parametrize(
    "shape, dim, start, length, memory_config",
    (
        ((24, 1, 32, 64), 0, 12, 6, None),
        ((24, 1, 30, 60), 0, 12, 12, None),
        ((1, 1, 768, 32), 2, 384, 384, None),
        ((1, 1, 64, 256), 3, 64, 128, block_sharded((32, 64), 4, 2)),
    ),
)
def test_a_narrowed_tensor_is_read_back(chips, shape, dim, start, length, memory_config):
    x = chips.draw(*shape)
    view = ttnn.narrow(chips.put(x, memory_config=memory_config), dim, start, length)
    want = [part.narrow(dim, start, length) for part in x]
    got = ttnn.to_torch(view, mesh_composer=ttnn.ConcatMeshToTensor(chips.device, dim=0))
    assert_same([got], [torch.cat(want)])
    assert_same(ttnn.neg(view), [-part for part in want])


def test_columns_of_block_floats_are_repeated_as_rows(chips):
    """As on a simulated N150 and P150: a transposed block has another exponent."""
    x = chips.put(torch.randn(1, 2, 64, 96), ttnn.bfloat8_b)
    rows = ttnn.repeat_interleave(ttnn.transpose(x, -1, -2), 2, dim=-2)
    got = chips.get(ttnn.repeat_interleave(x, 2, dim=-1))
    assert_same(got, chips.get(ttnn.transpose(rows, -1, -2))[0])
    assert not torch.equal(got[0], chips.get(x)[0].repeat_interleave(2, -1))
    assert_same(chips.get(ttnn.repeat_interleave(x, 1, dim=-1)), chips.get(x)[0])

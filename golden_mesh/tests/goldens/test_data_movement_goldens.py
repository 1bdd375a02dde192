"""Shapes: reshaping, slicing, joining, padding and reordering lose nothing and mix nothing up."""

import pytest
import torch
import torch.nn.functional as F
import ttnn

from goldens.support import assert_same, sharded

TILE, ROW_MAJOR = ttnn.TILE_LAYOUT, ttnn.ROW_MAJOR_LAYOUT
ODD, WHOLE = (1, 2, 33, 45), (1, 2, 64, 96)
PADDED = [1, 2, 64, 48], [0, 0, 0, 0], 1.5


def padded(x: torch.Tensor) -> torch.Tensor:
    return F.pad(x, (0, 16, 0, 32), value=1.5)


# Shape of x, the call, what torch makes of x, layouts (default: tiles).
CALLS = {
    "reshape odd": ((1, 3, 15, 7), lambda x: ttnn.reshape(x, (1, 5, 9, 7)), lambda x: x.reshape(1, 5, 9, 7)),
    "reshape by name": ((1, 3, 15, 7), lambda x: ttnn.reshape(x, shape=[1, 5, 9, 7]), lambda x: x.reshape(1, 5, 9, 7)),
    "a tensor's own reshape": ((1, 3, 32, 64), lambda x: x.reshape(1, 1, 96, 64), lambda x: x.reshape(1, 1, 96, 64)),
    "reshape cuts rows that pad a tile": (
        (1, 1, 32, 64), lambda x: ttnn.reshape(x, (1, 1, 8, 64), (1, 1, 32, 64)), lambda x: x[:, :, :8],
    ),
    "unsqueeze": ((33, 45), lambda x: ttnn.unsqueeze(x, 0), lambda x: x[None]),
    "unsqueeze moves": ((33, 45), lambda x: ttnn.unsqueeze(x, 1), lambda x: x[:, None]),
    "squeeze": ((1, 33, 45), lambda x: ttnn.squeeze(x, 0), lambda x: x[0]),
    "squeeze moves": ((33, 1, 45), lambda x: ttnn.squeeze(x, 1), lambda x: x[:, 0]),
    "unsqueeze_to_4D": ((33, 45), ttnn.unsqueeze_to_4D, lambda x: x[None, None]),
    "slice by name": (
        WHOLE, lambda x: ttnn.slice(x, starts=[0, 1, 3, 0], ends=[1, 2, 40, 96], steps=[1, 1, 1, 1]),
        lambda x: x[:, 1:2, 3:40],
    ),
    "slice with steps": (
        WHOLE, lambda x: ttnn.slice(x, starts=[0, 0, 3, 0], ends=[1, 2, 40, 96], steps=[1, 1, 2, 1]),
        lambda x: x[:, :, 3:40:2],
    ),
    "slice by brackets": (WHOLE, lambda x: x[:, 1:2, 3:40, :], lambda x: x[:, 1:2, 3:40]),
    "pad to a shape": ((1, 2, 32, 32), lambda x: ttnn.pad(x, *PADDED), padded, [ROW_MAJOR]),
    "pad to a shape by name": (
        (1, 2, 32, 32),
        lambda x: ttnn.pad(x, output_padded_shape=PADDED[0], input_tensor_start=PADDED[1], value=1.5),
        padded, [ROW_MAJOR],
    ),
    "pad by name": (
        (1, 2, 32, 32), lambda x: ttnn.pad(x, padding=[(0, 0), (0, 0), (0, 32), (0, 16)], value=1.5),
        padded, [ROW_MAJOR],
    ),
    "repeat": ((1, 1, 32, 64), lambda x: ttnn.repeat(x, (1, 2, 3, 1)), lambda x: x.repeat(1, 2, 3, 1)),
    "repeat_interleave": (
        (1, 1, 32, 64), lambda x: ttnn.repeat_interleave(x, 3, 1), lambda x: x.repeat_interleave(3, 1),
    ),
    "expand": ((1, 1, 32, 64), lambda x: ttnn.expand(x, (1, 4, 32, 64)), lambda x: x.expand(1, 4, 32, 64)),
}  # fmt: skip
for shape in ((1, 1, 96, 64), (96, 64), (1, 3, 32, 64), (1, 1, 48, 128), (3, 1, -1, 64)):
    CALLS[f"reshape {shape}"] = (
        (1, 3, 32, 64),
        lambda x, shape=shape: ttnn.reshape(x, shape),
        lambda x, shape=shape: x.reshape(shape),
        [TILE, ROW_MAJOR],
    )
for start, end, *step in (
    ((0, 0, 32, 0), (1, 2, 64, 96)),
    ((0, 1, 5, 32), (1, 2, 37, 64)),
    ((0, 0, 0, 0), (1, 2, 1, 7)),
    ((0, 0, 0, 0), (1, 2, 64, 96), (1, 1, 2, 1)),
):
    index = tuple(map(slice, start, end, *step))
    CALLS[f"slice {start} {end} {step}"] = (
        WHOLE,
        lambda x, at=(start, end, *step): ttnn.slice(x, *at),
        lambda x, index=index: x[index],
        [TILE, ROW_MAJOR],
    )
for dims in ((0, 2, 1, 3), (0, 1, 3, 2), (3, 2, 1, 0)):
    permute = lambda x, dims=dims: ttnn.permute(x, dims)
    CALLS[f"permute {dims}"] = ODD, permute, lambda x, dims=dims: x.permute(dims)
for dims in ((1, 2), (-2, -1)):
    transpose = lambda x, dims=dims: ttnn.transpose(x, *dims)
    CALLS[f"transpose {dims}"] = ODD, transpose, lambda x, dims=dims: x.transpose(*dims)
for dim in (0, 1, 2, -1):
    concat = lambda x, dim=dim: ttnn.concat([x, ttnn.neg(x)], dim=dim)
    CALLS[f"concat {dim}"] = ODD, concat, lambda x, dim=dim: torch.cat([x, -x], dim)
for at in range(3):
    part = lambda x, at=at: x[..., 32 * at : 32 * at + 32]
    CALLS[f"split {at}"] = WHOLE, lambda x, at=at: ttnn.split(x, 32, 3)[at], part
    CALLS[f"chunk {at}"] = WHOLE, lambda x, at=at: ttnn.chunk(x, 3, 3)[at], part
for value in (0.0, -2.5):
    CALLS[f"pad by extents with {value}"] = (
        ODD,
        lambda x, value=value: ttnn.pad(x, [(0, 0), (0, 1), (0, 31), (0, 19)], value),
        lambda x, value=value: F.pad(x, (0, 19, 0, 31, 0, 1), value=value),
    )


@pytest.mark.parametrize("name", CALLS)
def test_calls(chips, name):
    shape, call, want, layouts = (*CALLS[name], [TILE])[:4]
    for layout in layouts:
        assert_same(*chips.run(call, want, shape, layout=layout))


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
    base = chips.put(x)
    view = ttnn.reshape(base, (1, 2, 32, 64), (1, 2, 32, 64))
    assert view.buffer_address() == base.buffer_address()
    assert_same([v[:, :, :7] for v in chips.get(view)], x)
    assert all(v[:, :, 7:].isnan().all() for v in chips.get(view)), "these rows were never written"


def test_a_slice_does_not_share_memory_with_its_base(chips):
    x = chips.draw(1, 1, 64, 64)
    base = chips.put(x)
    part = ttnn.slice(base, (0, 0, 0, 0), (1, 1, 32, 64))
    ttnn.add_(part, 1.0)
    assert_same(base, x)


def test_concat_of_groups_interleaves_the_groups(chips):
    a, b = chips.draw(1, 1, 64, 32), chips.draw(1, 1, 64, 64)
    x, y = (
        chips.put(
            v,
            layout=ttnn.ROW_MAJOR_LAYOUT,
            memory_config=sharded("HEIGHT", (32, v[0].shape[-1]), 2),
        )
        for v in (a, b)
    )
    got = ttnn.concat([x, y], dim=3, groups=2, memory_config=sharded("HEIGHT", (32, 96), 2))
    want = [
        torch.cat((p[..., :16], q[..., :32], p[..., 16:], q[..., 32:]), -1) for p, q in zip(a, b)
    ]
    assert_same(got, want)


def test_pixels_become_channels(chips):
    x = chips.draw(1, 1, 128, 4)
    placed = chips.put(x, memory_config=sharded("HEIGHT", (64, 32), 2))
    assert_same(ttnn.experimental.convert_to_chw(placed), [v.transpose(2, 3) for v in x])


def test_padding_beyond_bfloat16_is_infinite(chips):
    """-3.4e38, a mask's usual value, rounds to -inf in bfloat16, as in the library."""
    x = chips.put(torch.zeros(1, 1, 32, 32))
    got = ttnn.pad(x, [(0, 0), (0, 0), (0, 0), (0, 32)], -3.4e38)
    want = torch.cat([torch.zeros(1, 1, 32, 32), torch.full((1, 1, 32, 32), -torch.inf)], -1)
    assert_same(got, want)


def test_slice_between_tensors(chips):
    """slice_dim and num_devices give the result's shape."""
    x = torch.randn(1, 1, 64, 128).bfloat16()
    start, end = (
        chips.put_ints(torch.tensor([0, 0, 32, 0])),
        chips.put_ints(torch.tensor([1, 1, 64, 128])),
    )
    got = ttnn.slice(chips.put(x), start, end, slice_dim=2, num_devices=2)
    assert_same(got, x[:, :, 32:])


def test_reshape_without_a_fill_of_the_padding(chips):
    x = chips.draw(1, 1, 30, 64)
    got = ttnn.reshape(chips.put(x), (1, 1, 60, 32), skip_padding_fill=True)
    assert_same(got, [v.reshape(1, 1, 60, 32) for v in x])

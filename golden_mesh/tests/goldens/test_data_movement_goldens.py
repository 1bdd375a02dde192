"""Shapes: reshaping, slicing, joining, padding and reordering lose nothing and mix nothing up."""

import pytest
import torch
import torch.nn.functional as F
import ttnn

from goldens.support import assert_same, sharded


@pytest.mark.parametrize("layout", (ttnn.TILE_LAYOUT, ttnn.ROW_MAJOR_LAYOUT), ids=str)
@pytest.mark.parametrize(
    "shape", ((1, 1, 96, 64), (96, 64), (1, 3, 32, 64), (1, 1, 48, 128), (3, 1, -1, 64)), ids=str
)
def test_reshape(chips, layout, shape):
    x = chips.draw(1, 3, 32, 64)
    assert_same(
        chips.get(ttnn.reshape(chips.put(x, layout=layout), shape)), [v.reshape(shape) for v in x]
    )


def test_reshape_of_odd_shapes(chips):
    x = chips.draw(1, 3, 15, 7)
    want = [v.reshape(1, 5, 9, 7) for v in x]
    assert_same(chips.get(ttnn.reshape(chips.put(x), (1, 5, 9, 7))), want)
    assert_same(chips.get(ttnn.reshape(chips.put(x), shape=[1, 5, 9, 7])), want)


def test_a_tensors_own_reshape_goes_the_same_way(chips):
    x = chips.draw(1, 3, 32, 64)
    assert_same(chips.get(chips.put(x).reshape(1, 1, 96, 64)), [v.reshape(1, 1, 96, 64) for v in x])


def test_view_and_its_base_are_one_memory(chips):
    x = chips.draw(1, 3, 32, 64)
    base = chips.put(x)
    view = ttnn.view(base, (1, 1, 96, 64))
    ttnn.multiply_(view, 3.0)
    assert_same(chips.get(base), [(v * 3).bfloat16() for v in x])
    assert_same(chips.get(view), [(v * 3).bfloat16().reshape(1, 1, 96, 64) for v in x])


def test_reshape_may_cut_rows_that_a_tile_pads_anyway(chips):
    x = chips.draw(1, 1, 32, 64)
    got = ttnn.reshape(chips.put(x), (1, 1, 8, 64), (1, 1, 32, 64))
    assert_same(chips.get(got), [v[:, :, :8] for v in x])


def test_reshape_may_show_the_rows_that_pad_a_tile(chips):
    """A KV head's queries viewed as their whole tile: a view moves no data."""
    x = chips.draw(1, 2, 7, 64)
    base = chips.put(x)
    view = ttnn.reshape(base, (1, 2, 32, 64), (1, 2, 32, 64))
    assert view.buffer_address() == base.buffer_address()
    assert_same([v[:, :, :7] for v in chips.get(view)], x)
    assert all(v[:, :, 7:].isnan().all() for v in chips.get(view)), "these rows were never written"


def test_unsqueeze_and_squeeze(chips):
    x = chips.draw(33, 45)
    up = ttnn.unsqueeze(chips.put(x), 0)
    assert_same(chips.get(up), [v[None] for v in x])
    assert_same(chips.get(ttnn.squeeze(up, 0)), x)
    between = ttnn.unsqueeze(chips.put(x), 1)  # in tiles this one has to move data
    assert_same(chips.get(between), [v[:, None] for v in x])
    assert_same(chips.get(ttnn.squeeze(between, 1)), x)
    assert_same(chips.get(ttnn.unsqueeze_to_4D(chips.put(x))), [v[None, None] for v in x])


@pytest.mark.parametrize("layout", (ttnn.TILE_LAYOUT, ttnn.ROW_MAJOR_LAYOUT), ids=str)
@pytest.mark.parametrize(
    "start, end, step",
    (
        ((0, 0, 32, 0), (1, 2, 64, 96), None),
        ((0, 1, 5, 32), (1, 2, 37, 64), None),
        ((0, 0, 0, 0), (1, 2, 1, 7), None),
        ((0, 0, 0, 0), (1, 2, 64, 96), (1, 1, 2, 1)),
    ),
    ids=str,
)
def test_slice(chips, layout, start, end, step):
    x = chips.draw(1, 2, 64, 96)
    got = ttnn.slice(chips.put(x, layout=layout), start, end, *([step] if step else []))
    index = tuple(map(slice, start, end, step or (1,) * 4))
    assert_same(chips.get(got), [v[index] for v in x])


def test_slice_by_its_other_names_and_by_brackets(chips):
    x = chips.draw(1, 2, 64, 96)
    placed, want = chips.put(x), [v[:, 1:2, 3:40] for v in x]
    assert_same(
        chips.get(ttnn.slice(placed, starts=[0, 1, 3, 0], ends=[1, 2, 40, 96], steps=[1, 1, 1, 1])),
        want,
    )
    stepped = ttnn.slice(placed, starts=[0, 0, 3, 0], ends=[1, 2, 40, 96], steps=[1, 1, 2, 1])
    assert_same(chips.get(stepped), [v[:, :, 3:40:2] for v in x])
    assert_same(chips.get(placed[:, 1:2, 3:40, :]), want)


def test_a_slice_does_not_share_memory_with_its_base(chips):
    x = chips.draw(1, 1, 64, 64)
    base = chips.put(x)
    part = ttnn.slice(base, (0, 0, 0, 0), (1, 1, 32, 64))
    ttnn.add_(part, 1.0)
    assert_same(chips.get(base), x)


@pytest.mark.parametrize("dim", (0, 1, 2, -1))
def test_concat(chips, dim):
    x, y = chips.draw(1, 2, 33, 45), chips.draw(1, 2, 33, 45)
    got = ttnn.concat([chips.put(x), chips.put(y)], dim=dim)
    assert_same(chips.get(got), [torch.cat([a, b], dim) for a, b in zip(x, y)])


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
    assert_same(chips.get(got), want)


def test_split_and_chunk(chips):
    x = chips.draw(1, 1, 64, 96)
    for got in (ttnn.split(chips.put(x), 32, 3), ttnn.chunk(chips.put(x), 3, 3)):
        for at, part in enumerate(got):
            assert_same(chips.get(part), [v[..., 32 * at : 32 * at + 32] for v in x])


@pytest.mark.parametrize("value", (0.0, -2.5))
def test_pad_by_extents(chips, value):
    x = chips.draw(1, 2, 33, 45)
    got = ttnn.pad(chips.put(x), [(0, 0), (0, 1), (0, 31), (0, 19)], value)
    assert_same(chips.get(got), [F.pad(v, (0, 19, 0, 31, 0, 1), value=value) for v in x])


def test_pad_to_a_shape(chips):
    x = chips.draw(1, 2, 32, 32)
    placed, want = (
        chips.put(x, layout=ttnn.ROW_MAJOR_LAYOUT),
        [F.pad(v, (0, 16, 0, 32), value=1.5) for v in x],
    )
    assert_same(chips.get(ttnn.pad(placed, [1, 2, 64, 48], [0, 0, 0, 0], 1.5)), want)
    named = ttnn.pad(
        placed, output_padded_shape=[1, 2, 64, 48], input_tensor_start=[0, 0, 0, 0], value=1.5
    )
    assert_same(chips.get(named), want)
    assert_same(
        chips.get(ttnn.pad(placed, padding=[(0, 0), (0, 0), (0, 32), (0, 16)], value=1.5)), want
    )


@pytest.mark.parametrize("dims", ((0, 2, 1, 3), (0, 1, 3, 2), (3, 2, 1, 0)), ids=str)
def test_permute(chips, dims):
    x = chips.draw(1, 2, 33, 45)
    assert_same(chips.get(ttnn.permute(chips.put(x), dims)), [v.permute(dims) for v in x])


@pytest.mark.parametrize("dims", ((1, 2), (-2, -1)), ids=str)
def test_transpose(chips, dims):
    x = chips.draw(1, 2, 33, 45)
    assert_same(chips.get(ttnn.transpose(chips.put(x), *dims)), [v.transpose(*dims) for v in x])


def test_repeat_repeat_interleave_and_expand(chips):
    x = chips.draw(1, 1, 32, 64)
    placed = chips.put(x)
    assert_same(chips.get(ttnn.repeat(placed, (1, 2, 3, 1))), [v.repeat(1, 2, 3, 1) for v in x])
    assert_same(
        chips.get(ttnn.repeat_interleave(placed, 3, 1)), [v.repeat_interleave(3, 1) for v in x]
    )
    assert_same(chips.get(ttnn.expand(placed, (1, 4, 32, 64))), [v.expand(1, 4, 32, 64) for v in x])


def test_pixels_become_channels(chips):
    x = chips.draw(1, 1, 128, 4)
    placed = chips.put(x, memory_config=sharded("HEIGHT", (64, 32), 2))
    assert_same(chips.get(ttnn.experimental.convert_to_chw(placed)), [v.transpose(2, 3) for v in x])


def test_padding_beyond_bfloat16_is_infinite(chips):
    """-3.4e38, a mask's usual value, rounds to -inf in bfloat16, as in the library."""
    x = chips.put(torch.zeros(1, 1, 32, 32))
    got = ttnn.pad(x, [(0, 0), (0, 0), (0, 0), (0, 32)], -3.4e38)
    want = torch.cat([torch.zeros(1, 1, 32, 32), torch.full((1, 1, 32, 32), -torch.inf)], -1)
    assert_same(chips.get(got), [want] * chips.count)


def test_slice_between_tensors(chips):
    """slice_dim and num_devices give the result's shape."""
    x = torch.randn(1, 1, 64, 128).bfloat16()
    start, end = (
        chips.put_ints(torch.tensor([0, 0, 32, 0])),
        chips.put_ints(torch.tensor([1, 1, 64, 128])),
    )
    got = ttnn.slice(chips.put(x), start, end, slice_dim=2, num_devices=2)
    assert_same(chips.get(got), [x[:, :, 32:]] * chips.count)


def test_reshape_without_a_fill_of_the_padding(chips):
    x = chips.draw(1, 1, 30, 64)
    got = ttnn.reshape(chips.put(x), (1, 1, 60, 32), skip_padding_fill=True)
    assert_same(chips.get(got), [v.reshape(1, 1, 60, 32) for v in x])

"""Pooling, scaling and sampling of images against torch, or by their definition."""

import pytest
import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.errors import GoldenError
from goldens.support import assert_close, assert_same, cores, sharded

ROW_MAJOR = dict(layout=ttnn.ROW_MAJOR_LAYOUT)


def draw(*shape):
    return torch.randn(shape).bfloat16().float()


def last(image):
    """[N, C, H, W] -> [N, H, W, C]"""
    return image.permute(0, 2, 3, 1)


def flat(image):
    return last(image).reshape(1, 1, -1, image.shape[1])


def pooled(chips, op, image, *how, **options):
    batch, channels, height, width = image.shape
    x = chips.put(flat(image), **ROW_MAJOR)
    return op(x, batch, height, width, channels, *how, **options)


MAX_POOLS = {
    "plain": ((2, 32, 8, 10), (2, 2), (2, 2), (0, 0), (1, 1), False),
    "padded": ((1, 64, 9, 9), (3, 3), (2, 2), (1, 1), (1, 1), False),
    "a row more": ((1, 32, 10, 10), (3, 3), (2, 2), (0, 0), (1, 1), True),
    "dilated": ((1, 32, 12, 11), (2, 3), (1, 2), (0, 1), (2, 2), False),
}


@pytest.mark.parametrize("case", MAX_POOLS)
def test_max_pool2d(chips, case):
    shape, *how = MAX_POOLS[case]
    image = draw(*shape)
    want = F.max_pool2d(image, *how)
    got = pooled(chips, ttnn.max_pool2d, image, *how)
    assert_same(got, flat(want))


def test_max_pool2d_with_padding_of_four_sides(chips):
    image = draw(1, 32, 8, 8)
    got = pooled(chips, ttnn.max_pool2d, image, (3, 3), (2, 2), (0, 1, 1, 0), (1, 1))
    want = F.max_pool2d(F.pad(image, (1, 0, 0, 1), value=-torch.inf), 3, 2)
    assert_same(got, flat(want))


def test_indices_of_max_pool2d(chips):
    image = draw(1, 32, 8, 8)
    how = ((3, 3), (2, 2), (1, 1), (1, 1))
    values, places = pooled(chips, ttnn.max_pool2d, image, *how, return_indices=True)
    want = F.max_pool2d(image, 3, 2, 1, return_indices=True)
    assert_same(values, flat(want[0]))
    assert_same(places, flat(want[1]))


AVERAGES = {
    "plain": ((2, 32, 8, 10), (2, 2), (2, 2), (0, 0), {}),
    "padding counts": ((1, 32, 9, 9), (3, 3), (2, 2), (1, 1), {}),
    "padding does not": ((1, 32, 9, 9), (3, 3), (2, 2), (1, 1), dict(count_include_pad=False)),
    "a row more": ((1, 32, 10, 10), (3, 3), (2, 2), (1, 1), dict(ceil_mode=True)),
    "divided by 5": ((1, 32, 8, 8), (2, 2), (2, 2), (0, 0), dict(divisor_override=5)),
}


@pytest.mark.parametrize("case", AVERAGES)
def test_avg_pool2d(chips, case):
    shape, kernel, stride, padding, options = AVERAGES[case]
    image = draw(*shape)
    got = pooled(chips, ttnn.avg_pool2d, image, kernel, stride, padding, **options)
    want = F.avg_pool2d(image.double(), kernel, stride, padding, **options)
    assert_close(got, flat(want))


@pytest.mark.parametrize("size", ((1, 1), (2, 4)))
def test_adaptive_pools(chips, size):
    image = draw(1, 32, 8, 8)
    windows = image.double().unflatten(3, (size[1], -1)).unflatten(2, (size[0], -1))
    got = pooled(chips, ttnn.adaptive_avg_pool2d, image, list(size))
    assert_close(got, flat(windows.mean((3, 5))))
    got = pooled(chips, ttnn.adaptive_max_pool2d, image, list(size))
    assert_same(got, flat(windows.amax((3, 5))))


def test_an_adaptive_pool_that_does_not_divide_the_image_is_refused(chips):
    with pytest.raises(GoldenError, match="adaptive_avg_pool2d with output_size"):
        pooled(chips, ttnn.adaptive_avg_pool2d, draw(1, 32, 8, 8), [3, 3])


def test_global_avg_pool2d(chips):
    image = draw(2, 32, 7, 7)
    got = ttnn.global_avg_pool2d(chips.put(last(image)))
    want = image.double().mean((2, 3), keepdim=True)
    assert_close(got, last(want), steps=2)


@pytest.mark.parametrize("scale", (2, [2, 3]))
def test_upsample_to_the_nearest(chips, scale):
    image = draw(1, 32, 5, 4)
    down, right = (scale, scale) if isinstance(scale, int) else scale
    got = ttnn.upsample(chips.put(last(image), **ROW_MAJOR), scale)
    want = image.repeat_interleave(down, 2).repeat_interleave(right, 3)
    assert_same(got, last(want))


def test_upsample_between_pixels(chips):
    """Twice as many pixels: each lies a quarter of the way to a neighbor."""
    row = draw(1, 32, 1, 6).double()
    before, after = (
        F.pad(row, (1, 0, 0, 0), mode="replicate"),
        F.pad(row, (0, 1, 0, 0), mode="replicate"),
    )
    pairs = (0.75 * row + 0.25 * before[..., :-1], 0.75 * row + 0.25 * after[..., 1:])
    want = torch.stack(pairs, -1).flatten(-2).expand(1, 32, 8, 12)
    image = row.float().expand(1, 32, 4, 6)
    x = chips.put(last(image).contiguous(), **ROW_MAJOR)
    assert_close(ttnn.upsample(x, 2, mode="bilinear"), last(want))


@pytest.mark.parametrize("collapse", (False, True))
def test_fold(chips, collapse):
    x = draw(2, 8, 6, 16)
    got = ttnn.fold(chips.put(x, **ROW_MAJOR), 2, 3, collapse_output=collapse)
    parts = [x[:, row::2, column::3] for row in range(2) for column in range(3)]
    want = torch.cat(parts, -1)
    want = want.reshape(1, 1, -1, want.shape[-1]) if collapse else want
    assert_same(got, want)


@pytest.mark.parametrize("align", (False, True))
def test_grid_sample(chips, align):
    """Places in the middle of pixels give the pixels, places outside of the image zeros."""
    image = draw(1, 32, 4, 8)
    rows, columns = torch.tensor([0, 3, 2]), torch.tensor([7, 0, 5])
    if align:
        y, x = rows / 3 * 2 - 1, columns / 7 * 2 - 1
    else:
        y, x = (rows * 2 + 1) / 4 - 1, (columns * 2 + 1) / 8 - 1
    places = torch.stack((torch.cat((x, torch.tensor([3.0]))), torch.cat((y, torch.zeros(1)))), -1)
    grid = chips.put(places.view(1, 1, 4, 2), ttnn.float32, **ROW_MAJOR)
    got = ttnn.grid_sample(chips.put(last(image), **ROW_MAJOR), grid, align_corners=align)
    want = torch.cat((image[0, :, rows, columns].T, torch.zeros(1, 32))).view(1, 1, 4, 32)
    assert_close(got, want.double(), steps=2)


@pytest.mark.parametrize("channels", (False, True))
def test_several_places_of_a_grid_lie_side_by_side(chips, channels):
    image, grid = draw(1, 32, 6, 6), torch.rand(1, 3, 2, 4) * 2 - 1
    want = last(F.grid_sample(image.double(), grid.double().view(1, 3, 4, 2), align_corners=False))
    got = ttnn.grid_sample(
        chips.put(last(image), **ROW_MAJOR),
        chips.put(grid, ttnn.float32, **ROW_MAJOR),
        batch_output_channels=channels,
    )
    want = want.reshape(1, 3, 2, 64) if channels else want
    assert_close(got, want, steps=2)


def test_a_precomputed_grid_is_refused(chips):
    x, grid = draw(1, 4, 4, 32), torch.zeros(1, 2, 2, 6)
    with pytest.raises(GoldenError, match="use_precomputed_grid=True"):
        ttnn.grid_sample(
            chips.put(x, **ROW_MAJOR), chips.put(grid, **ROW_MAJOR), use_precomputed_grid=True
        )


@pytest.mark.parametrize("edge, is_sharded", ((0, False), (0, True), (3, True)))
def test_fold_by_transposes(chips, edge, is_sharded):
    """Of [N, C, H, W], as in ResNet-50: edges, a channel of zeros after three, and 2x2 neighbors as channels."""
    x = chips.draw(2, 3, 64, 64)
    shards = sharded("HEIGHT", (3 * 64, 64), 2) if is_sharded else None
    got = ttnn.fold(
        chips.put(x, memory_config=shards, **ROW_MAJOR), 2, 2, use_transpose_as_fold=True,
        padding=[edge, edge, edge, edge, 0, 1], grid_size=cores(2),
    )  # fmt: skip
    side = 32 + edge
    want = [F.pad(v, (edge, edge, edge, edge, 0, 1)).permute(0, 2, 3, 1) for v in x]
    want = [v.reshape(2, side, 2, side, 2, 4).transpose(2, 3).flatten(3) for v in want]
    assert_same([g.reshape(w.shape) for g, w in zip(chips.get(got), want)], want)


def test_fold_by_transposes_of_tiles_that_are_not_full_is_refused(chips):
    with pytest.raises(GoldenError, match="ttnn.fold has no golden for"):
        image = chips.put(chips.draw(2, 3, 8, 12), **ROW_MAJOR)
        ttnn.fold(image, 2, 2, use_transpose_as_fold=True, padding=[0, 0, 0, 0, 0, 1])

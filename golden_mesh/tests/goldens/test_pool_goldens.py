"""Pooling, scaling and sampling of images against torch, or by their definition."""

import pytest
import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.errors import GoldenError
from goldens.support import ROW_MAJOR, Put, assert_same, bf16, cores, examples, sharded

ROWS = dict(layout=ROW_MAJOR)


def first(x):
    """[N, H, W, C] -> [N, C, H, W]"""
    return x.permute(0, 3, 1, 2)


def last(image):
    """[N, C, H, W] -> [N, H, W, C]"""
    return image.permute(0, 2, 3, 1)


def flat(image):
    return last(image).reshape(1, 1, -1, image.shape[1])


def pooled(name: str, x, *how, **options):
    """ttnn's pool of x [N, H, W, C]."""
    batch, height, width, channels = x.shape
    return getattr(ttnn, name)(x, batch, height, width, channels, *how, **options)


PLAIN, SMALL, EVEN = (2, 8, 10, 32), (1, 8, 8, 32), (1, 10, 10, 32)
MAX_POOLS = {
    "pooled('max_pool2d', x, (2, 2), (2, 2), (0, 0), (1, 1))": ("flat(F.max_pool2d(first(x), 2))", PLAIN),
    "pooled('max_pool2d', x, (3, 3), (2, 2), (0, 0), (1, 1), True)":  # a row more
        ("flat(F.max_pool2d(first(x), 3, 2, ceil_mode=True))", EVEN),
    "pooled('max_pool2d', x, (2, 2), (3, 3), (1, 1), (1, 1), True)":  # none beyond the padding
        ("flat(F.max_pool2d(first(x), 2, 3, 1, ceil_mode=True))", (1, 5, 5, 32)),
    "pooled('max_pool2d', x, (2, 3), (1, 2), (0, 1), (2, 2))":
        ("flat(F.max_pool2d(first(x), (2, 3), (1, 2), (0, 1), 2))", (1, 12, 11, 32)),
    "pooled('max_pool2d', x, (3, 3), (2, 2), (0, 1, 1, 0), (1, 1))":
        ("flat(F.max_pool2d(F.pad(first(x), (1, 0, 0, 1), value=-torch.inf), 3, 2))", SMALL),
    "pooled('max_pool2d', x, (3, 3), (2, 2), (1, 1), (1, 1), return_indices=True)":
        ("[flat(v) for v in F.max_pool2d(first(x), 3, 2, 1, return_indices=True)]", SMALL),
    "pooled('adaptive_max_pool2d', x, [1, 1])": ("flat(windows(x, 1, 1).amax((3, 5)))", SMALL),
    "pooled('adaptive_max_pool2d', x, [2, 4])": ("flat(windows(x, 2, 4).amax((3, 5)))", SMALL),
    "pooled('adaptive_max_pool2d', x, [3, 4])":  # a simulated N150 gives torch's windows
        ("flat(F.adaptive_max_pool2d(first(x), (3, 4)))", (1, 7, 9, 32)),
    "ttnn.upsample(x, [2, 3])": ("doubled(x, 2, 3)", (1, 5, 4, 32)),
    "ttnn.fold(x, 2, 3, collapse_output=False)": ("folded(x)", (2, 8, 6, 16)),
    "ttnn.fold(x, 2, 3, collapse_output=True)": ("folded(x).reshape(1, 1, -1, 96)", (2, 8, 6, 16)),
}  # fmt: skip
AVERAGES = {  # and those of test_families.py
    "pooled('avg_pool2d', x, (3, 3), (2, 2), (1, 1), ceil_mode=True)":
        ("flat(F.avg_pool2d(first(x), 3, 2, 1, ceil_mode=True))", EVEN),
    "pooled('avg_pool2d', x, (2, 2), (2, 2), (0, 0), divisor_override=5)":
        ("flat(F.avg_pool2d(first(x), 2, divisor_override=5))", SMALL),
    "pooled('adaptive_avg_pool2d', x, [1, 1])": ("flat(windows(x, 1, 1).mean((3, 5)))", SMALL),
    "pooled('adaptive_avg_pool2d', x, [2, 4])": ("flat(windows(x, 2, 4).mean((3, 5)))", SMALL),
    "pooled('adaptive_avg_pool2d', x, [3, 3])": ("flat(F.adaptive_avg_pool2d(first(x), (3, 3)))", EVEN),
    "ttnn.global_avg_pool2d(x)": ("x.mean((1, 2), keepdim=True)", Put((2, 7, 7, 32))),
}  # fmt: skip


def windows(x, down: int, right: int):
    """[N, C, down, height of a window, right, width of a window]"""
    return first(x).unflatten(3, (right, -1)).unflatten(2, (down, -1))


def doubled(x, down: int, right: int):
    return x.repeat_interleave(down, 1).repeat_interleave(right, 2)


def folded(x):
    return torch.cat([x[:, row::2, column::3] for row in range(2) for column in range(3)], -1)


test_values_that_move = examples(MAX_POOLS, globals(), layout=ROW_MAJOR, error=0)
test_averages = examples(AVERAGES, globals(), layout=ROW_MAJOR, error=1.2e-2)  # a bfloat16 dest


def grid(*shape: int) -> Put:
    """Places in the image, whose sides are -1 and 1, and some outside of it."""
    return Put(lambda: torch.rand(shape) * 2.4 - 1.2, ttnn.float32, ROW_MAJOR)


GRID = grid(1, 3, 2, 4)  # several places lie side by side
SAMPLED = "last(F.grid_sample(first(x), y.view(1, 3, 4, 2), align_corners=False))"
SAMPLES = {
    "ttnn.grid_sample(x, y)": (SAMPLED, (1, 4, 8, 32), grid(1, 3, 4, 2)),
    "ttnn.grid_sample(x, y, align_corners=True)": (SAMPLED.replace("False", "True"), (1, 4, 8, 32), grid(1, 3, 4, 2)),
    "ttnn.grid_sample(x, y, batch_output_channels=False)": (SAMPLED, (1, 6, 6, 32), GRID),
    "ttnn.grid_sample(x, y, batch_output_channels=True)": (f"{SAMPLED}.reshape(1, 3, 2, 64)", (1, 6, 6, 32), GRID),
}
test_samples = examples(SAMPLES, globals(), layout=ROW_MAJOR, steps=2)


@pytest.mark.parametrize("edge, is_sharded", ((0, False), (0, True), (3, True)))
def test_fold_by_transposes(chips, edge, is_sharded):
    """Of [N, C, H, W], as in ResNet-50: edges, a channel of zeros, 2x2 neighbors as channels."""
    padding, side = [edge, edge, edge, edge, 0, 1], 32 + edge
    x, shards = chips.draw(2, 3, 64, 64), sharded("HEIGHT", (3 * 64, 64), 2) if is_sharded else None
    how = dict(use_transpose_as_fold=True, padding=padding, grid_size=cores(2))
    got = ttnn.fold(chips.put(x, memory_config=shards, **ROWS), 2, 2, **how)
    want = [last(F.pad(v, padding)).reshape(2, side, 2, side, 2, 4) for v in x]
    want = [v.transpose(2, 3).flatten(3) for v in want]
    assert_same([g.reshape(w.shape) for g, w in zip(chips.get(got), want)], want)


def test_refusals(chips):
    x = chips.put(bf16(*SMALL), **ROWS)
    with pytest.raises(GoldenError, match="use_precomputed_grid=True"):
        ttnn.grid_sample(x, chips.put(torch.zeros(1, 2, 2, 6), **ROWS), use_precomputed_grid=True)
    with pytest.raises(GoldenError, match="ttnn.fold has no golden for"):  # tiles that are not full
        image = chips.put(bf16(2, 3, 8, 12), **ROWS)
        ttnn.fold(image, 2, 2, use_transpose_as_fold=True, padding=[0, 0, 0, 0, 0, 1])

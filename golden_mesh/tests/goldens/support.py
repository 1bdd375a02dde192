"""Comparisons of the chips' values with expected values, and memory configs for small tests."""

import torch
import ttnn

# Relative error of a result that was computed in float32 and rounded once. A chip's engine rounds by up
# to 9/16 of a unit in the last place. The test's other order of summation may fall on the other side
# of a tie, and adds as much again.
RELATIVE = {"BFLOAT16": 9 / 8 * 2**-8, "FLOAT32": 2**-20}

# Cuts no operand and sums in float32. For tests of an op's meaning, not of its precision.
EXACT = ttnn.WormholeComputeKernelConfig(
    math_fidelity=ttnn.MathFidelity.HiFi4, math_approx_mode=False, fp32_dest_acc_en=True
)


def pairs(got, want) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return (got, want) of each chip in float64. The shapes must be equal.

    got: a tensor on the device, or one torch tensor a chip. want: one torch tensor a chip, or one for all.
    """
    if isinstance(got, ttnn.Tensor):
        got = [ttnn.to_torch(shard) for shard in ttnn.get_device_tensors(got)]
    if isinstance(want, torch.Tensor):
        want = [want] * len(got)
    for chip, (g, w) in enumerate(zip(got, want, strict=True)):
        shapes = tuple(g.shape), tuple(w.shape)
        assert shapes[0] == shapes[1], f"chip {chip}: shape {shapes[0]}, not {shapes[1]}"
    return [(g.double(), w.double()) for g, w in zip(got, want)]


def assert_close(got, want, dtype=None, steps: int = 1) -> None:
    """Assert that each chip's values are `want`, rounded to `dtype`. `want` is float32 or float64.

    steps: the number of roundings to `dtype`. Each may have an error relative to the largest value.
    """
    relative = RELATIVE[(dtype or ttnn.bfloat16).name]
    for g, w in pairs(got, want):
        # A long sum's error is relative to its terms. So is the error of terms that are rounded
        # before they are added.
        accumulated = (2e-6 + (steps - 1) * relative / 2) * w.abs().max().item()
        torch.testing.assert_close(g, w, rtol=steps * relative, atol=accumulated)


def assert_values(got, want, dtype=None, steps: int = 1) -> None:
    """Assert that each chip's values, also infinities and NaNs, are `want` after `steps` roundings to `dtype`.

    A packer writes NaN as infinity in bfloat16.
    """
    dtype = dtype or ttnn.bfloat16
    for g, w in pairs(got, want):
        if dtype == ttnn.bfloat16:
            w = w.masked_fill(w.isnan(), torch.inf)
        largest = w.nan_to_num(0, 0, 0).abs().max().item()
        held = w.float() if dtype == ttnn.float32 else w.float().bfloat16()
        w = torch.where(held.isinf(), held.double(), w)  # overflow gives infinity
        bounds = dict(rtol=steps * RELATIVE[dtype.name], atol=min(largest, 1) * 2**-22)
        torch.testing.assert_close(g, w, **bounds, equal_nan=True)


def assert_near(got, want, error: float) -> None:
    """Assert a relative error of at most `error` in norm, for ops with many rounded steps."""
    for chip, (g, w) in enumerate(pairs(got, want)):
        off = ((g - w).norm() / w.norm()).item()
        assert off <= error, f"chip {chip}: off by {off:.2e} of the size"


def assert_same(got, want) -> None:
    """Assert that each chip holds exactly `want`."""
    for chip, (g, w) in enumerate(pairs(got, want)):
        assert torch.equal(g, w), f"chip {chip}: differs by up to {(g - w).abs().max()}"


def cores(count: int, start: int = 0) -> ttnn.CoreRangeSet:
    """`count` cores of the 8x8 grid row by row, from the `start`-th on."""
    grid = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(7, 7))})
    first = ttnn.CoreCoord(start % 8, start // 8)
    return ttnn.num_cores_to_corerangeset_in_subcoregrids(first, count, grid, row_wise=True)


def sharded(layout: str, shape: tuple[int, int], count: int, start: int = 0) -> ttnn.MemoryConfig:
    """L1, layout "HEIGHT" or "WIDTH", shards of `shape` on `count` cores."""
    return ttnn.MemoryConfig(
        getattr(ttnn.TensorMemoryLayout, f"{layout}_SHARDED"),
        ttnn.BufferType.L1,
        ttnn.ShardSpec(cores(count, start), shape, ttnn.ShardOrientation.ROW_MAJOR),
    )


def dram_sharded(device, rows: int, columns: int) -> ttnn.MemoryConfig:
    """Width-sharded over the DRAM banks: the layout of a DRAM-sharded matmul's weight and bias."""
    banks = device.dram_grid_size().x
    width = -(-columns // (32 * banks)) * 32
    grid = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(banks - 1, 0))})
    spec = ttnn.ShardSpec(grid, (rows, width), ttnn.ShardOrientation.ROW_MAJOR)
    return ttnn.MemoryConfig(ttnn.TensorMemoryLayout.WIDTH_SHARDED, ttnn.BufferType.DRAM, spec)

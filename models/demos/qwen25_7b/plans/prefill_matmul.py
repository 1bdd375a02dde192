"""A prefill matmul as a value: many rows on a 2D grid of cores, both operands multicast."""

from dataclasses import dataclass
from typing import Iterator, Optional

import ttnn

from models.demos.qwen25_7b.plans.grids import TILE_BYTES, Grid, ceil_div, divisors

SUBBLOCK = 4  # tiles: what dest holds with fp32 accumulation
# A core's time for a tile by the tiles of its subblock, to weigh plans by: one was published 1.4 times as slow as two
# (512 x 4096 x 2560 on 8x8 cores); that three and four gain a little more is a guess.
SUBBLOCK_COST = {1: 1.4, 2: 1.0, 3: 0.95, 4: 0.9}
LONGEST_BLOCK = 16  # tiles of K at a time: beyond, nothing is gained


@dataclass(frozen=True)
class PrefillMatmul:
    """[1, 1, rows, K] times [K, N], K and N in tiles. The grid's rows share out the rows, its columns the columns.

    in_sharded: x lies block-sharded on the grid, else interleaved in L1; out_sharded likewise.
    """

    grid: Grid
    k_tiles: int
    n_tiles: int
    in0_block_w: int  # tiles of K at a time
    per_core_m: int  # tiles
    per_core_n: int
    subblock_h: int
    subblock_w: int
    weight: str  # its format
    in_sharded: bool
    out_sharded: bool
    bias: bool

    def __str__(self) -> str:
        where = {True: "block-sharded", False: "interleaved"}
        return (
            f"{self.k_tiles} x {self.n_tiles} tiles on {self.grid.x}x{self.grid.y} cores, each {self.per_core_m} x "
            f"{self.per_core_n} in subblocks of {self.subblock_h}x{self.subblock_w}, {self.in0_block_w} tiles of K at a time, "
            f"{where[self.in_sharded]} to {where[self.out_sharded]}; {self.buffers:,} bytes of L1"
        )

    @property
    def buffers(self) -> int:
        """Circular buffers of a core: two blocks of each operand, results in float32 and, where they are not a shard of
        the result itself, in bfloat16; a row of the bias. As measured on a mock, to the byte."""
        in0 = 2 * self.per_core_m * self.in0_block_w * TILE_BYTES["bfloat16"]
        in1 = 2 * self.per_core_n * self.in0_block_w * TILE_BYTES[self.weight]
        results = self.per_core_m * self.per_core_n
        out = results * TILE_BYTES["float32"] + (0 if self.out_sharded else results * TILE_BYTES["bfloat16"])
        return in0 + in1 + out + (self.per_core_n * TILE_BYTES["bfloat16"] if self.bias else 0)

    @property
    def cost(self) -> float:
        """Of a core, in tiles of results weighed by their subblocks: what plans of one matmul are compared by."""
        return self.per_core_m * self.per_core_n * SUBBLOCK_COST[self.subblock_h * self.subblock_w]

    def program_config(self) -> ttnn.MatmulMultiCoreReuseMultiCastProgramConfig:
        return ttnn.MatmulMultiCoreReuseMultiCastProgramConfig(
            compute_with_storage_grid_size=(self.grid.x, self.grid.y),
            in0_block_w=self.in0_block_w,
            out_subblock_h=self.subblock_h,
            out_subblock_w=self.subblock_w,
            per_core_M=self.per_core_m,
            per_core_N=self.per_core_n,
            transpose_mcast=False,
            fused_activation=None,
            fuse_batch=True,
        )


def prefill_matmuls(
    row_tiles: int,
    k_tiles: int,
    n_tiles: int,
    cores: Grid,
    weight: str,
    *,
    in_shard: Optional[int],
    out_sharded: bool,
    bias: bool = False,
) -> Iterator[PrefillMatmul]:
    """All plans, those of the least cost first, of equal ones that with the longest block of K.

    in_shard: tiles of K on a column of cores, the last of which may be filled in part; None: x is interleaved.
    Every column of cores has columns of the result: shards of x on a column without would have to be sent by a core that
    has nothing else to do.
    """
    least, per_core_m = ceil_div(n_tiles, cores.x), ceil_div(row_tiles, cores.y)
    blocks = [w for w in divisors(in_shard or k_tiles) if k_tiles % w == 0 and w <= LONGEST_BLOCK]
    plans = [
        PrefillMatmul(
            cores, k_tiles, n_tiles, block, per_core_m, n, *largest_subblock(per_core_m, n, out_sharded), weight,
            in_shard is not None, out_sharded, bias,
        )
        for n in range(least, least + SUBBLOCK)
        if ceil_div(n_tiles, n) == cores.x
        for block in blocks
    ]  # fmt: skip
    return iter(sorted(plans, key=lambda plan: (plan.cost, -plan.in0_block_w)))


def largest_subblock(rows: int, columns: int, one_row: bool = False) -> tuple[int, int]:
    """(height, width) in tiles of the largest subblock that divides a core's block; of equal ones, the widest.

    one_row: a sharded result is written row by row, unless a subblock is as wide as the core's block.
    """
    sizes = [
        (h, w)
        for h in divisors(rows)
        for w in divisors(columns)
        if h * w <= SUBBLOCK and (h == 1 or w == columns or not one_row)
    ]
    return max(sizes, key=lambda size: (size[0] * size[1], size[1]))

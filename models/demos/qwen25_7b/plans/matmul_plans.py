"""How a matmul runs on a chip: program configs as values, computed from the numbers of tiles.

Decode multiplies one tile row by a weight that streams from all DRAM banks (`DecodeMatmul`); prefill multiplies many
rows on a 2D grid of cores (`PrefillMatmul`). Both account for the L1 that their circular buffers take.
"""

from dataclasses import dataclass
from functools import lru_cache

import ttnn

from models.demos.qwen25_7b.plans.grids import TILE, TILE_BYTES, Grid, ceil_div, divisors

DRAM_BANKS = 12  # Wormhole

# Bytes of a core's L1 that a matmul's circular buffers may take. A core has 1,499,136 bytes less what the runtime keeps
# (1,393,312 are left for buffers); decode leaves room for its activations, the all-reduce buffers and rotary tables.
DECODE_L1 = 1_120_000
PREFILL_L1 = 1_250_000  # activations are in DRAM; DecodePlan.prefill_l1 may be less

SUBBLOCK = 4  # tiles: what dest holds with fp32 accumulation
# A core's time for a tile by the tiles of its subblock, to weigh plans by: one was published 1.4 times as slow as two
# (512 x 4096 x 2560 on 8x8 cores); that three and four gain a little more is a guess.
SUBBLOCK_COST = {1: 1.4, 2: 1.0, 3: 0.95, 4: 0.9}


@dataclass(frozen=True)
class DecodeMatmul:
    """[32, K] width-sharded in L1 times [K, N] width-sharded over the DRAM banks -> [32, N] width-sharded in L1.

    Twelve cores, each beside a DRAM bank, stream that bank's columns; `out_cores` only store the result.
    """

    k_tiles: int
    n_tiles: int
    in_cores: int  # cores that hold the input, k_tiles / in_cores tiles each
    in0_block_w: int  # tiles of K multiplied at a time; divides an input core's tiles
    per_core_n: int  # tiles of N on each output core
    weight: str  # its format

    @property
    def out_cores(self) -> int:
        return self.n_tiles // self.per_core_n

    @property
    def l1_bytes(self) -> int:
        """Of a streaming core, the fullest."""
        return decode_l1_bytes(self.n_tiles, self.in0_block_w, self.weight)

    @property
    def tiles_a_bank(self) -> int:
        """Columns that each DRAM bank gives out."""
        return ceil_div(self.n_tiles, DRAM_BANKS)

    @property
    def padding(self) -> float:
        """Of what is read, what fills up the banks: a share of the weight."""
        return self.tiles_a_bank * DRAM_BANKS / self.n_tiles - 1

    def __str__(self) -> str:
        return (
            f"K {self.k_tiles} tiles on {self.in_cores} cores, {self.in0_block_w} at a time; N {self.n_tiles} tiles from "
            f"{DRAM_BANKS} banks, {self.tiles_a_bank} each ({self.padding:.1%} padding), to {self.out_cores} cores, "
            f"{self.per_core_n} each; {self.l1_bytes:,} of {DECODE_L1:,} bytes of L1"
        )

    def program_config(self) -> ttnn.MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig:
        return ttnn.MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig(
            in0_block_w=self.in0_block_w, per_core_M=1, per_core_N=self.per_core_n, fused_activation=None
        )


def streamed_tiles(n_tiles: int) -> int:
    """Columns of a weight as it is read, in tiles: every DRAM bank gives out as many as the fullest."""
    return ceil_div(n_tiles, DRAM_BANKS) * DRAM_BANKS


def decode_l1_bytes(n_tiles: int, in0_block_w: int, weight: str) -> int:
    """Circular buffers of one streaming core: three blocks of its bank's columns in flight, a float32 and a bfloat16
    row of results, two blocks of the input."""
    bank_tiles = ceil_div(n_tiles, DRAM_BANKS)
    in1 = 3 * in0_block_w * bank_tiles * TILE_BYTES[weight]
    out = bank_tiles * (TILE_BYTES["float32"] + TILE_BYTES["bfloat16"])
    return in1 + out + 2 * in0_block_w * TILE_BYTES["bfloat16"]


def plan_decode(
    k_tiles: int, n_tiles: int, in_cores: int, weight: str, *, out_cores: int, divides: int = 0
) -> DecodeMatmul:
    """The plan with the most output cores, then with the longest block of K whose buffers fit; print it to see why.

    in_cores: where the input lies. weight: its format. out_cores: at most so many cores take the result.
    divides: a number of tiles that per_core_n must divide (a head's width, so that no head is cut by a core's border).
    ValueError when no choice fits L1.
    """
    per_core_n = next(p for p in divisors(n_tiles) if n_tiles // p <= out_cores and (not divides or divides % p == 0))
    blocks = [w for w in divisors(k_tiles // in_cores) if w <= 8 and decode_l1_bytes(n_tiles, w, weight) <= DECODE_L1]
    if not blocks:
        raise ValueError(
            f"decode matmul of {k_tiles} x {n_tiles} tiles in {weight} takes "
            f"{decode_l1_bytes(n_tiles, 1, weight)} bytes of a core's L1, {DECODE_L1} are there: split its columns"
        )
    return DecodeMatmul(k_tiles, n_tiles, in_cores, max(blocks), per_core_n, weight)


@dataclass(frozen=True)
class PrefillMatmul:
    """[1, 1, S, K] times [K, N] in passes of `rows` rows, each on a 2D grid with both operands multicast."""

    rows: int  # of a pass; divides S
    grid: Grid
    in0_block_w: int
    per_core_m: int  # tiles
    per_core_n: int
    subblock_h: int
    subblock_w: int
    weight: str  # its format

    def __str__(self) -> str:
        return (
            f"{self.rows} rows a pass on {self.grid.x}x{self.grid.y} cores, each {self.per_core_m} x {self.per_core_n} tiles "
            f"in subblocks of {self.subblock_h}x{self.subblock_w}, {self.in0_block_w} tiles of K at a time; "
            f"{prefill_l1_bytes(self, self.weight):,} of {PREFILL_L1:,} bytes of L1"
        )

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
            fuse_batch=False,
        )


@lru_cache(maxsize=None)  # asked for at every prefill; few rows and shapes
def plan_prefill(rows: int, k_tiles: int, n_tiles: int, grid: Grid, weight: str, l1: int = PREFILL_L1) -> PrefillMatmul:
    """The plan with the most rows a pass whose circular buffers fit, then with the longest block of K.

    rows: S, padded as TtTransformer pads it (a power of two tiles, or a multiple of 1024). l1: bytes of a core.
    """
    row_tiles = min(rows // TILE, 32)
    while True:
        for block in (8, 4, 2, 1):
            plan = _prefill(row_tiles, k_tiles, n_tiles, grid, block, weight)
            if k_tiles % block == 0 and prefill_l1_bytes(plan, weight) <= l1:
                return plan
        if row_tiles % 2:
            raise ValueError(f"prefill matmul of {k_tiles} x {n_tiles} tiles in {weight} does not fit a core's L1")
        row_tiles //= 2


def _prefill(row_tiles: int, k_tiles: int, n_tiles: int, grid: Grid, block: int, weight: str) -> PrefillMatmul:
    used = Grid(min(grid.x, n_tiles), min(grid.y, row_tiles))
    per_core_m, least = ceil_div(row_tiles, used.y), ceil_div(n_tiles, used.x)
    # A few columns of nothing are worth a larger subblock: 296 tiles are 37 a core, a prime; 40 make subblocks of 4.
    choices = [(n, *largest_subblock(per_core_m, n)) for n in range(least, least + SUBBLOCK)]
    per_core_n, height, width = min(choices, key=lambda c: (c[0] * SUBBLOCK_COST[c[1] * c[2]], c[0]))
    used = Grid(ceil_div(n_tiles, per_core_n), ceil_div(row_tiles, per_core_m))
    return PrefillMatmul(row_tiles * TILE, used, block, per_core_m, per_core_n, height, width, weight)


def largest_subblock(rows: int, columns: int) -> tuple[int, int]:
    """(height, width) in tiles of the largest subblock that divides a core's block; of equal ones, the widest."""
    sizes = [(h, w) for h in divisors(rows) for w in divisors(columns) if h * w <= SUBBLOCK]
    return max(sizes, key=lambda size: (size[0] * size[1], size[1]))


def prefill_l1_bytes(plan: PrefillMatmul, weight: str) -> int:
    """Circular buffers of one core: two blocks of each operand, the results in float32 and in bfloat16."""
    in0 = 2 * plan.per_core_m * plan.in0_block_w * TILE_BYTES["bfloat16"]
    in1 = 2 * plan.per_core_n * plan.in0_block_w * TILE_BYTES[weight]
    out = plan.per_core_m * plan.per_core_n * (TILE_BYTES["float32"] + TILE_BYTES["bfloat16"])
    return in0 + in1 + out

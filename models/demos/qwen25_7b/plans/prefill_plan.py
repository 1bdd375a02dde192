"""The plan of a prefill batch: up to 1024 rows through a layer with every activation in L1.

Rows are tokens of one prompt, or of several prompts side by side. The residual is block-sharded: columns of cores share
its width, rows of cores the tokens. DRAM holds weights, caches, positions and tables only.
"""

from dataclasses import dataclass
from typing import Optional

from ..config.recipe import AllReduceDtype
from .blocks import MAX_K_CHUNK
from .grids import TILE, TILE_BYTES, Grid, Shards, block_sharded, ceil_div, divisors
from .model_table import LayerSpec, LinearSpec

SUBBLOCK = 4  # tiles: what dest holds with fp32 accumulation
# Relative time of a tile by the tiles of its subblock. One tile against two is 1.4 in tt-metal's report (512 x 4096 x
# 2560 on 8x8 cores). The values for three and four are estimates.
SUBBLOCK_COST = {1: 1.4, 2: 1.0, 3: 0.95, 4: 0.9}
# Chunks of keys that a row attends to, where a larger batch would have fewer. A core's sum of weights loses up to 2e-4
# of itself with a chunk: 2 % here, 4 % over 32768 tokens with chunks of 128.
MAX_K_CHUNKS = 128
LONGEST_BLOCK = 16  # tiles of K at a time: longer blocks gain nothing


@dataclass(frozen=True)
class PrefillMatmul:
    """[1, 1, rows, K] times [K, N], K and N in tiles. Rows of cores share the rows, columns of cores the columns.

    in_sharded: x is block-sharded on the grid, else interleaved in L1. out_sharded: the result is.
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

    @property
    def buffers(self) -> int:
        """Circular buffers of a core, to the byte of a mock: two blocks of each operand, float32 results, the bias.

        A result that is not sharded needs bfloat16 results as well.
        """
        in0 = 2 * self.per_core_m * self.in0_block_w * TILE_BYTES["bfloat16"]
        in1 = 2 * self.per_core_n * self.in0_block_w * TILE_BYTES[self.weight]
        results = self.per_core_m * self.per_core_n
        out = results * TILE_BYTES["float32"] + (0 if self.out_sharded else results * TILE_BYTES["bfloat16"])
        return in0 + in1 + out + (self.per_core_n * TILE_BYTES["bfloat16"] if self.bias else 0)

    @property
    def cost(self) -> float:
        """A core's tiles of results times SUBBLOCK_COST: compares plans of one matmul."""
        return self.per_core_m * self.per_core_n * SUBBLOCK_COST[self.subblock_h * self.subblock_w]


def prefill_matmuls(
    linear: LinearSpec, in_shard: Optional[int], out_sharded: bool, *, row_tiles: int, cores: Grid
) -> list[PrefillMatmul]:
    """All plans of a projection by rising cost; equal costs by falling blocks of K.

    in_shard: tiles of K on a column of cores, of which the last may hold fewer; None: x is interleaved. Every column of
    cores has columns of the result, because each sends its shard of x to the others.
    """
    k_tiles, n_tiles = (extent // TILE for extent in linear.weight.shape)
    least, per_core_m = ceil_div(n_tiles, cores.x), ceil_div(row_tiles, cores.y)
    blocks = [w for w in divisors(in_shard or k_tiles) if k_tiles % w == 0 and w <= LONGEST_BLOCK]
    plans = [
        PrefillMatmul(
            cores, k_tiles, n_tiles, block, per_core_m, n, *largest_subblock(per_core_m, n, out_sharded),
            linear.group.format, in_shard is not None, out_sharded, bool(linear.bias),
        )
        for n in range(least, least + SUBBLOCK)
        if ceil_div(n_tiles, n) == cores.x
        for block in blocks
    ]  # fmt: skip
    return sorted(plans, key=lambda plan: (plan.cost, -plan.in0_block_w))


def largest_subblock(rows: int, columns: int, one_row: bool) -> tuple[int, int]:
    """Return (height, width) in tiles of the largest subblock that divides a core's block.

    Of equally large subblocks it is the widest. With `one_row` a subblock is one tile high or as wide as the core's
    block, because a sharded result is written row by row.
    """
    sizes = [
        (h, w)
        for h in divisors(rows)
        for w in divisors(columns)
        if h * w <= SUBBLOCK and (h == 1 or w == columns or not one_row)
    ]
    return max(sizes, key=lambda size: (size[0] * size[1], size[1]))


@dataclass(frozen=True)
class PrefillPlan:
    layer: LayerSpec  # the first of its kind
    rows: int  # a power of two, a tile or more
    cores: Grid  # that hold the residual
    qkv: PrefillMatmul
    o: PrefillMatmul
    mlp_in: PrefillMatmul  # of gate and of up each, or of the one matmul that they are
    down: PrefillMatmul
    # Tokens of k at a time in a chunked prefill of one sequence, at most. Several sequences take fewer: chunk_step.
    k_chunk_size: int = TILE

    @property
    def gathered(self) -> AllReduceDtype:
        """Format of an all-reduce's sums; a chip alone has bfloat16."""
        return self.layer.recipe.all_reduce_dtype if self.layer.parallel.tp > 1 else "bfloat16"

    @property
    def residual_memory(self) -> Shards:
        """[1, 1, rows, hidden]"""
        return block_sharded(self.rows, self.layer.dims.hidden_size, self.cores)

    @property
    def heads_memory(self) -> Optional[Shards]:
        """[1, 1, rows, q_heads * head_dim]: attention's result as the O projection reads it."""
        return block_sharded(self.rows, self.o.k_tiles * TILE, self.cores) if self.o.in_sharded else None

    @property
    def wide_memory(self) -> Optional[Shards]:
        """[1, 1, rows, mlp]: gate, up and their product; joined: [gate | up], interleaved so that it can be cut."""
        width = self.mlp_in.per_core_n * self.cores.x * TILE
        return block_sharded(self.rows, width, self.cores) if self.mlp_in.out_sharded else None

    @property
    def partial_sum_memory(self) -> Optional[Shards]:
        """[1, 1, rows, hidden]: the results of O and down, a partial sum on each chip."""
        return self.residual_memory if self.o.out_sharded else None

    @property
    def scattered_memory(self) -> Optional[Shards]:
        """[1, 1, rows, hidden / chips]: a chip's columns of the sum."""
        width = self.layer.dims.hidden_size // self.layer.parallel.tp
        return block_sharded(self.rows, width, self.cores) if self.o.out_sharded else None


def q_chunk_size(rows: int) -> int:
    """Tokens of q that a core takes at a time, of a batch's `rows` rows or of a sequence's in a chunked prefill. Whole
    prompts take as many of k.

    Small batches take 32, so that few tokens are computed again. Large batches take 128, so that keys are
    read less often.
    """
    return 128 if rows >= 128 else TILE


def chunk_step(rows: int, block: int) -> int:
    """Tokens between the starts of chunks of `rows` rows in a chunked prefill. block: tokens in a block of the cache.

    A start is a multiple of the cache's block, of q_chunk_size, and of the k chunk: at other starts ttnn's chunked
    attention gave wrong values now and then on a T3K (tt-metal issue 35225). A long step computes more tokens again,
    short chunks of keys lose more of the result, see MAX_K_CHUNKS.
    """
    return max(block, q_chunk_size(rows) if rows < MAX_K_CHUNK else MAX_K_CHUNK)

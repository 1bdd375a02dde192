"""How a decode step runs, as values: slots, cores, matmuls that stream weights, shards of MLP and LM head."""

from dataclasses import dataclass, replace
from itertools import count

from ..config import DecoderConfig, Recipe
from ..config.recipe import AllReduceDtype
from ..errors import UserError
from .all_reduce_plan import AllReducePlan, Topology
from .blocks import decode_k_chunk
from .chip import Chip
from .grids import TILE, TILE_BYTES, Grid, Shards, ceil_div, divisors, height_sharded, most_even, width_sharded
from .parallel_plan import ParallelPlan

RESULT_BESIDE_MATMULS = 131_072  # bytes of a core that chip.BESIDE_MATMULS has for a matmul's result
SEMAPHORES = 40_000  # bytes of a core that collectives keep: L1_SMALL, or L1 on a mesh that was opened without L1_SMALL


@dataclass(frozen=True)
class DecodeLayout:
    """Which cores hold what in a decode step; matmuls have plans of their own (DecodeMatmul).

    A step computes a tile row, [1, 1, 32, width]. Its first `slots` rows are slots, the others not read.
    """

    slots: int  # slots, 1 to 32
    chip: Chip
    residual: Grid  # cores that hold the residual stream
    hidden: int  # columns of the residual stream
    all_reduce: AllReducePlan  # sums attention's and the MLP's partial sums

    @classmethod
    def make(
        cls,
        config: DecoderConfig,
        parallel: ParallelPlan,
        chip: Chip,
        min_slots: int,
        *,
        topology: Topology = "line",
        partial_sums: AllReduceDtype = "bfloat16",
        links: int = 1,
    ) -> "DecodeLayout":
        """The layout for at least `min_slots` slots.

        topology, links: of the replica's chips. partial_sums: the narrowest format that the recipe allows for them.

        Each slot has its own core. More slots than one row of cores holds are rounded up to whole rows, or to 32: on a
        grid of 8x8, 9 become 16; on one of 11x10, 9 stay 9, 12 become 22, and 23 become 32.
        """
        grid = chip.grid
        slots = min_slots if min_slots <= grid.x else min(ceil_div(min_slots, grid.x) * grid.x, TILE)
        residual = grid.residual(config.hidden_size // TILE, parallel.tp)
        all_reduce = AllReducePlan.make(parallel.tp, topology, config.hidden_size, partial_sums, links)
        return cls(slots, chip, residual, config.hidden_size, all_reduce)

    @property
    def grid(self) -> Grid:
        """Cores of a chip."""
        return self.chip.grid

    @property
    def fused_qk(self) -> bool:
        """Whether q and k of all slots lie on different cores, as the fused ops require.

        The 56 cores of worker dispatch hold q and k of up to 24 slots. With 32 they share cores and take an op each.
        """
        return 2 * self.slots <= self.grid.cores

    @property
    def rotary_users(self) -> int:
        """Cores that hold rotary factors: one a slot for q, and one for k with fused_qk."""
        return 2 * self.slots if self.fused_qk else self.slots

    @property
    def fills_rows(self) -> bool:
        """Whether the slots' cores are a rectangle: nlp_concat_heads_decode takes it without their grid."""
        return self.slots <= self.grid.x or self.slots % self.grid.x == 0

    def k_chunk(self, tokens: int) -> int:
        """Keys that attention takes at a time from a table of `tokens` tokens."""
        return decode_k_chunk(tokens, self.chip.k_chunk)

    @property
    def layer_l1(self) -> int:
        """Bytes of a core's L1 that the tensors and buffers of a layer may take.

        The rest is the rotary matrix, semaphores, and two buffers with a partial sum of each chip; an all-reduce
        without such a buffer leaves its bytes free.
        """
        partial_sums = 2 * self.all_reduce.chips if self.all_reduce.chips > 1 else 0
        tiles = 1 + partial_sums * (self.hidden // TILE // self.residual.cores)
        return self.chip.l1 - tiles * TILE_BYTES["bfloat16"] - SEMAPHORES

    @property
    def residual_memory(self) -> Shards:
        """[1, 1, 32, hidden]"""
        return width_sharded(self.hidden, self.residual)

    def user_memory(self, width: int) -> Shards:
        """[1, slots, 32, width]: the heads of each slot on its core."""
        return height_sharded(width, self.grid, self.slots)

    def rotary_memory(self, width: int) -> Shards:
        """[1, rotary_users, 32, width]: rotary factors on the cores of q, then of k."""
        return height_sharded(width, self.grid, self.rotary_users)


# ---- matmuls

# Blocks of x are multicast one after the other, beside the weights of the block before. A multicast that takes longer
# than those weights is waited for (tt-metal issue 55443): 1.44 us at most in published matmuls. Seconds of weights that
# a block should have: what the plans of O, gate, up and down have.
HOP = 2e-6
# Seconds in which a reader packs the float32 partial sum of a tile column, once a block: the block's weights should
# take longer than those of all its columns (tests/unit/test_plans.py compares with the price).
PARTIAL_SUM = 65e-9


@dataclass(frozen=True)
class DecodeMatmul:
    """[32, K] width-sharded in L1 times [K, N] width-sharded over the DRAM banks -> [32, N] width-sharded in L1.

    One core beside each DRAM bank streams the columns of its bank. The output cores only store the result.
    """

    k_tiles: int
    n_tiles: int
    in_cores: int  # that hold x, k_tiles / in_cores tiles each
    in0_block_w: int  # tiles of K multiplied at a time; divides an input core's tiles, or is a multiple of them
    per_core_n: int  # tiles of N on each output core
    weight: str  # format of the weight
    chip: Chip

    @classmethod
    def make(
        cls, k_tiles: int, n_tiles: int, in_cores: int, weight: str, chip: Chip, *, out_cores: int, divides: int = 0
    ) -> "DecodeMatmul":
        """The plan with the most output cores, then with the longest block of K on an input core that fits L1.

        Where streaming the weights of such a block takes less than a multicast, or than packing its partial sums, a
        block spans several input cores.

        out_cores: the most output cores. divides: as in most_even, for the tiles of an output core.
        UserError: no plan fits L1.
        """
        cores = most_even(n_tiles, out_cores, divides)
        plan = cls(k_tiles, n_tiles, in_cores, 1, n_tiles // max(1, cores), weight, chip)
        widths = plan.widths
        if not (cores and widths):
            raise UserError(
                f"decode: no plan of a matmul of {k_tiles} x {n_tiles} tiles in {weight} fits {out_cores} cores and "
                f"{chip.matmul_l1:,} bytes of each one's L1: use more chips a replica (tp)"
            )
        hidden = max(HOP, PARTIAL_SUM * ceil_div(n_tiles, chip.readers))
        covering = (w for w in widths if replace(plan, in0_block_w=w).hop_seconds >= hidden)
        return replace(plan, in0_block_w=next(covering, widths[-1]))

    @property
    def out_cores(self) -> int:
        return self.n_tiles // self.per_core_n

    @property
    def bank_tiles(self) -> int:
        """Tiles of N that a core streams.

        Where an output core holds more than that, ttnn refuses a last bank with columns for its first reader only.
        """
        tiles = ceil_div(self.n_tiles, self.chip.readers)
        while self.per_core_n > tiles and ceil_div(self.n_tiles, tiles) % self.chip.readers_per_bank:
            tiles += 1
        return tiles

    @property
    def bank_shard(self) -> int:
        """Tiles of N on a DRAM bank."""
        return self.bank_tiles * self.chip.readers_per_bank

    @property
    def serves_prefill(self) -> bool:
        """Whether a 2D multicast matmul reads the weight right from the banks.

        ttnn hands its kernel ceil(tiles of N / banks) as the width of a bank's shard, whatever the shard is: every
        column of a wider shard comes out wrong. Two readers a bank widen odd shards.
        """
        return self.bank_shard == ceil_div(self.n_tiles, self.chip.banks)

    @property
    def l1_bytes(self) -> int:
        """Circular buffers of a streaming core, the fullest: three blocks of weight, two of x, a float32 and a bfloat16
        row of results. A block that spans several shards of x is gathered in one more block.
        """
        weights = 3 * self.in0_block_w * self.bank_tiles * TILE_BYTES[self.weight]
        results = self.bank_tiles * (TILE_BYTES["float32"] + TILE_BYTES["bfloat16"])
        gathers = self.in0_block_w > self.k_tiles // self.in_cores
        return weights + results + (2 + gathers) * self.in0_block_w * TILE_BYTES["bfloat16"]

    @property
    def fits(self) -> bool:
        """Whether the circular buffers fit L1 beside the result.

        Few cores share a number of tiles with few divisors: 652 tiles of a vocabulary lie on four.
        """
        result = self.per_core_n * TILE_BYTES["bfloat16"]
        return self.l1_bytes <= self.chip.matmul_l1 - max(0, result - RESULT_BESIDE_MATMULS)

    @property
    def widths(self) -> list[int]:
        """What in0_block_w can be: the longest within an input core's tiles, then those of several cores."""
        shard = self.k_tiles // self.in_cores
        fitting = [w for w in divisors(self.k_tiles) if replace(self, in0_block_w=w).fits]
        within = [w for w in fitting if shard % w == 0 and w <= 8]
        over = [w for w in fitting if w % shard == 0 and w > max(within)]
        return within[-1:] + over

    @property
    def hop_seconds(self) -> float:
        """The time in which a core streams a block of weights from its DRAM bank."""
        reader_bandwidth = self.chip.matmul_bandwidth / self.chip.readers
        return self.in0_block_w * self.bank_tiles * TILE_BYTES[self.weight] / reader_bandwidth


def stored_columns(n_tiles: int, cores: int, format: str, chip: Chip) -> DecodeMatmul:
    """A weight of any rows: its columns and its result's cores decide the banks' shards, and whether L1 has room."""
    return DecodeMatmul(1, n_tiles, 1, 1, n_tiles // most_even(n_tiles, cores), format, chip)


# ---- gate and up: two matmuls, or one

HALF_CORES = 4  # cores for each half of a joined matmul's result: two halves fill a row of the grid
# Joining must save 3 % of the MLP's tiles and this many bytes a layer. It costs prefill two slices and L1: at tp 4,
# where it would save 2.5 %, the largest prefill batch would have half the rows.
MIN_SAVED_SHARE, MIN_SAVED_BYTES = 0.03, 500_000


def gate_up_tiles(config: DecoderConfig, parallel: ParallelPlan, recipe: Recipe, chip: Chip) -> tuple[int, bool]:
    """(tiles, joined): columns of gate and of up, and rows of down, that a chip holds with zero padding, and whether
    gate and up are one weight [gate | up], streamed by one matmul.

    They are the fewest tiles whose banks serve prefill, too, and which lie on half of the cores or more.
    A read counts the columns of the fullest DRAM bank for every bank. Two weights of 74 tiles (7B, tp 8)
    are read as 2 x 84 tiles. One weight of 2 x 76 tiles is read as 156.
    """
    hidden, least, cores = config.hidden_size // TILE, parallel.mlp // TILE, chip.matmul_cores
    residual = chip.grid.residual(hidden, parallel.tp).cores
    down = stored_columns(hidden, residual, recipe.mlp_out.format, chip)

    def fewest(matmuls: int, step: int, out_cores: int) -> tuple[int, int, int]:
        """The fewest tiles, in whole steps; then tiles and bytes of gate, up and down that a chip reads a layer."""
        for tiles in count(ceil_div(least, step) * step, step):
            wide = stored_columns(2 * tiles // matmuls, out_cores, recipe.mlp_in.format, chip)
            even = 2 * most_even(tiles, cores) >= min(tiles, cores)
            if even and wide.serves_prefill:
                break
        read_in, read_out = hidden * matmuls * wide.bank_shard * chip.banks, tiles * down.bank_shard * chip.banks
        size = read_in * TILE_BYTES[recipe.mlp_in.format] + read_out * TILE_BYTES[recipe.mlp_out.format]
        return tiles, read_in + read_out, size

    apart, apart_tiles, apart_bytes = fewest(matmuls=2, step=1, out_cores=cores)
    joined, joined_tiles, joined_bytes = fewest(matmuls=1, step=HALF_CORES, out_cores=2 * HALF_CORES)
    saves = (
        apart_tiles - joined_tiles >= MIN_SAVED_SHARE * apart_tiles and apart_bytes - joined_bytes >= MIN_SAVED_BYTES
    )
    return (joined, True) if saves else (apart, False)


# ---- LM head

# topk works on all cores for powers of two up to 2**15 columns, and on a single core for other widths.
MAX_LM_HEAD_SHARD = 32768 // TILE


def lm_head_shards(vocab: int, format: str, chip: Chip) -> list[tuple[int, int]]:
    """(first column, columns) of each shard of a chip's `vocab` columns; one matmul computes a shard.

    The remainder comes first, then shards of the largest size: the largest power of two for which it and the remainder
    fit L1 as matmuls; topk needs a power of two. The sampler pads the first shard for topk. The padding columns then
    have the numbers of the next shard's.
    """

    def fits(tiles: int) -> bool:
        return stored_columns(tiles, chip.matmul_cores, format, chip).fits

    tiles, most = vocab // TILE, MAX_LM_HEAD_SHARD
    while not fits(most) or tiles % most and not fits(tiles % most):
        most //= 2
    rest = tiles % most * TILE
    return [(0, rest)] * (rest > 0) + [(first, most * TILE) for first in range(rest, vocab, most * TILE)]

"""How a decode step runs, as values: slots, cores, matmuls that stream weights, shards of MLP and LM head."""

from dataclasses import dataclass

from ..config import DecoderConfig, Recipe
from ..config.recipe import AllReduceDtype
from .all_reduce_plan import AllReducePlan, Topology
from .blocks import decode_k_chunk
from .chip import Chip
from .grids import TILE, TILE_BYTES, Grid, Shards, ceil_div, divisors, height_sharded, residual_grid, width_sharded
from .parallel_plan import ParallelPlan

RESULT_BESIDE_MATMULS = 131_072  # bytes of a core that chip.BESIDE_MATMULS has for a matmul's result
SEMAPHORES = 40_000  # bytes of a core that collectives keep: L1_SMALL, or L1 on a mesh that was opened without L1_SMALL


@dataclass(frozen=True)
class DecodePlan:
    """A decode step computes a tile row, [1, 1, 32, width]. Its first `slots` rows are slots, the others not read."""

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
        users: int,
        *,
        topology: Topology = "line",
        partial_sums: AllReduceDtype = "bfloat16",
        links: int = 1,
    ) -> "DecodePlan":
        """The plan for at least `users` slots.

        topology, links: of the replica's chips. partial_sums: the narrowest format that the recipe allows for them.

        Each slot has its own core. More slots than one row of cores holds are rounded up to whole rows, or to 32: on a
        grid of 8x8, 9 become 16; on one of 11x10, 9 stay 9, 12 become 22, and 23 become 32.
        """
        grid = chip.grid
        slots = users if users <= grid.x else min(ceil_div(users, grid.x) * grid.x, TILE)
        residual = residual_grid(config.hidden_size // TILE, grid, parallel.tp)
        all_reduce = AllReducePlan.make(parallel.tp, topology, config.hidden_size, partial_sums, links)
        return cls(slots, chip, residual, config.hidden_size, all_reduce)

    @property
    def grid(self) -> Grid:
        """Cores of a chip."""
        return self.chip.grid

    @property
    def fused_qk(self) -> bool:
        """Whether q and k of all slots lie on different cores, as the fused ops require.

        The 56 cores of worker dispatch hold q and k of up to 24 slots. With 32 slots q and k share cores and take an op
        each.
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
    def l1_room(self) -> int:
        """Bytes of a core's L1 for the tensors and buffers of a layer.

        The rest is the rotary matrix, semaphores, and two buffers with a partial sum of each chip. An all-reduce
        without such a buffer leaves its bytes free, because tensors that are freed leave holes, which no plan counts.
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

    @property
    def out_cores(self) -> int:
        return self.n_tiles // self.per_core_n

    @property
    def l1_bytes(self) -> int:
        """Circular buffers of a streaming core, the fullest."""
        gathers = self.in0_block_w > self.k_tiles // self.in_cores
        return decode_l1_bytes(self.n_tiles, self.in0_block_w, self.weight, self.chip, gathers)

    @property
    def widths(self) -> list[int]:
        """What in0_block_w can be."""
        return block_widths(self.k_tiles, self.n_tiles, self.in_cores, self.weight, self.chip, self.per_core_n)

    @property
    def hops(self) -> int:
        """Blocks of x that are multicast one after the other."""
        return self.k_tiles // self.in0_block_w

    @property
    def hop_seconds(self) -> float:
        """The time in which a core streams the weights of a block."""
        return block_seconds(self.n_tiles, self.in0_block_w, self.weight, self.chip)


def plan_decode_matmul(
    k_tiles: int, n_tiles: int, in_cores: int, weight: str, chip: Chip, *, out_cores: int, divides: int = 0
) -> DecodeMatmul:
    """Return the plan with the most output cores, then with the longest block of K on an input core that fits L1.

    Where streaming the weights of such a block takes less than a multicast, or than packing its partial sums, a block
    spans several input cores.

    - in_cores: cores that hold x.
    - weight: the weight's format.
    - out_cores: the most output cores.
    - divides: tiles that per_core_n must divide, so that no core's border cuts a head.

    ValueError: no plan fits L1.
    """
    per_core_n = tiles_per_core(n_tiles, out_cores, divides)
    widths = block_widths(k_tiles, n_tiles, in_cores, weight, chip, per_core_n)
    if not widths:
        raise ValueError(
            f"decode matmul of {k_tiles} x {n_tiles} tiles in {weight} takes "
            f"{decode_l1_bytes(n_tiles, 1, weight, chip)} bytes of a core's L1, {chip.matmul_l1} are there: "
            "split its columns"
        )
    hidden = max(chip.hop, chip.partial_sum * ceil_div(n_tiles, chip.readers))
    covering = (w for w in widths if block_seconds(n_tiles, w, weight, chip) >= hidden)
    block = next(covering, widths[-1])
    return DecodeMatmul(k_tiles, n_tiles, in_cores, block, per_core_n, weight, chip)


def tiles_per_core(n_tiles: int, cores: int, divides: int = 0) -> int:
    """Tiles of a result on each of the most cores that share it evenly. cores, divides: as in plan_decode_matmul."""
    return next(p for p in divisors(n_tiles) if n_tiles // p <= cores and (not divides or divides % p == 0))


def matmul_room(per_core_n: int, chip: Chip) -> int:
    """Bytes of a core for the circular buffers beside a result of per_core_n tiles.

    Few cores share a number of tiles with few divisors: 652 tiles of a vocabulary lie on four.
    """
    return chip.matmul_l1 - max(0, per_core_n * TILE_BYTES["bfloat16"] - RESULT_BESIDE_MATMULS)


def block_widths(k_tiles: int, n_tiles: int, in_cores: int, weight: str, chip: Chip, per_core_n: int) -> list[int]:
    """Tiles of K in a block that fits L1: the longest within an input core's tiles, then those of several cores.

    Before version 0.81 ttnn takes the first one only.
    """
    shard = k_tiles // in_cores
    room = matmul_room(per_core_n, chip)
    fitting = [w for w in divisors(k_tiles) if decode_l1_bytes(n_tiles, w, weight, chip, w > shard) <= room]
    within = [w for w in fitting if shard % w == 0 and w <= 8]
    over = [w for w in fitting if w % shard == 0 and w > max(within)]
    return within[-1:] + over * chip.blocks_span_shards


def block_seconds(n_tiles: int, in0_block_w: int, weight: str, chip: Chip) -> float:
    """The time in which a core streams a block of weights from its DRAM bank."""
    return in0_block_w * ceil_div(n_tiles, chip.readers) * TILE_BYTES[weight] / chip.reader_bandwidth


def streamed_tiles(n_tiles: int, readers: int) -> int:
    """Tiles of columns that a matmul reads of a weight: every DRAM bank counts as the fullest bank."""
    return ceil_div(n_tiles, readers) * readers


def streamed_bytes(rows: int, columns: int, format: str, readers: int) -> int:
    """Bytes of a weight [rows, columns] over the DRAM banks: every bank counts as the fullest bank."""
    return ceil_div(rows, TILE) * streamed_tiles(ceil_div(columns, TILE), readers) * TILE_BYTES[format]


def decode_l1_bytes(n_tiles: int, in0_block_w: int, weight: str, chip: Chip, gathers: bool = False) -> int:
    """Circular buffers of a streaming core: three blocks of weight, two of x, a float32 and a bfloat16 row of results.

    gathers: a block spans several shards of x. Its sender gathers it in one more block.
    """
    bank_tiles = ceil_div(n_tiles, chip.readers)
    weights = 3 * in0_block_w * bank_tiles * TILE_BYTES[weight]
    results = bank_tiles * (TILE_BYTES["float32"] + TILE_BYTES["bfloat16"])
    return weights + results + (2 + gathers) * in0_block_w * TILE_BYTES["bfloat16"]


# ---- gate and up: two matmuls, or one

HALF_CORES = 4  # cores for each half of a joined matmul's result: two halves fill a row of the grid
# Joining must save 3 % of the MLP's tiles and this many bytes a layer. It costs prefill two slices and L1: at tp 4,
# where it would save 2.5 %, the largest prefill batch would have half the rows.
MIN_SAVED_SHARE, MIN_SAVED_BYTES = 0.03, 500_000


@dataclass(frozen=True)
class GateUpLayout:
    """joined: gate and up are one weight [gate | up], streamed by one matmul.

    A read counts the columns of the fullest DRAM bank for every bank. Two weights of 74 tiles (7B, tp 8)
    are read as 2 x 84 tiles. One weight of 2 x 76 tiles is read as 156.
    """

    tiles: int  # columns of gate and of up, and rows of down, that a chip holds with zero padding
    joined: bool
    readers: int  # cores that stream a weight

    @classmethod
    def make(cls, config: DecoderConfig, parallel: ParallelPlan, recipe: Recipe, chip: Chip) -> "GateUpLayout":
        hidden, tiles = config.hidden_size // TILE, parallel.mlp // TILE
        apart = cls(tiles, False, chip.readers)
        joined = cls(ceil_div(tiles, HALF_CORES) * HALF_CORES, True, chip.readers)
        saved_tiles = apart.read_tiles(hidden) - joined.read_tiles(hidden)
        saved_bytes = apart.bytes(hidden, recipe) - joined.bytes(hidden, recipe)
        saves_enough = saved_tiles >= MIN_SAVED_SHARE * apart.read_tiles(hidden)
        return joined if saves_enough and saved_bytes >= MIN_SAVED_BYTES else apart

    def weights(self) -> list[int]:
        """Columns in tiles of each weight that a layer streams for gate and up."""
        return [2 * self.tiles] if self.joined else [self.tiles, self.tiles]

    def read_tiles(self, hidden_tiles: int) -> int:
        """Tiles of gate, up and down that a chip reads a layer, padding included."""
        return self._wide_tiles(hidden_tiles) + self.tiles * streamed_tiles(hidden_tiles, self.readers)

    def bytes(self, hidden_tiles: int, recipe: Recipe) -> int:
        """Bytes of gate, up and down that a chip reads a layer, padding included."""
        wide = self._wide_tiles(hidden_tiles) * TILE_BYTES[recipe.mlp_in.format]
        return wide + self.tiles * streamed_tiles(hidden_tiles, self.readers) * TILE_BYTES[recipe.mlp_out.format]

    def _wide_tiles(self, hidden_tiles: int) -> int:
        return sum(hidden_tiles * streamed_tiles(n, self.readers) for n in self.weights())


# ---- LM head

# topk works on all cores for powers of two up to 2**15 columns, and on a single core for other widths.
MAX_LM_HEAD_SHARD = 32768 // TILE


def lm_head_shards(vocab: int, format: str, chip: Chip) -> list[tuple[int, int]]:
    """(first column, columns) of each shard of a chip's `vocab` columns; one matmul computes a shard."""
    widths = [tiles * TILE for tiles in lm_head_shard_tiles(vocab // TILE, format, chip)]
    return [(sum(widths[:i]), width) for i, width in enumerate(widths)]


def lm_head_shard_tiles(vocab_tiles: int, format: str, chip: Chip) -> list[int]:
    """Columns of each shard in tiles: the remainder first, then shards of the largest size.

    The largest size is the largest power of two for which it and the remainder fit L1 as matmuls; topk needs a power of
    two. The sampler pads the first shard for topk. The padding columns then have the numbers of the next shard's.
    """

    def fits(tiles: int) -> bool:
        room = matmul_room(tiles_per_core(tiles, chip.grid.cores), chip)
        return decode_l1_bytes(tiles, 1, format, chip) <= room

    most = MAX_LM_HEAD_SHARD
    while not fits(most) or vocab_tiles % most and not fits(vocab_tiles % most):
        most //= 2
    rest = vocab_tiles % most
    return [rest] * (rest > 0) + [most] * (vocab_tiles // most)

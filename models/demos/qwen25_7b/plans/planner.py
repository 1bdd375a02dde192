"""Plans that fit a core's L1. Models without such a plan are refused."""

from dataclasses import replace
from functools import lru_cache
from typing import Iterable

from ..config import QwenConfig, Recipe
from ..errors import UserError
from .blocks import BLOCKS, MAX_K_CHUNK
from .chip import Chip
from .decode_plan import DecodePlan, GateUpLayout
from .grids import TILE, Grid, ceil_div, divisors
from .l1 import decode_footprints, prefill_footprints
from .memory_budget import layer_recipes
from .parallel_plan import ParallelPlan
from .prefill_plan import PrefillMatmul, PrefillPlan, chunk_step, prefill_matmuls

MAX_PREFILL_ROWS = 1024
MAX_Q_HEADS = TILE  # of a user on a chip: nlp_create_qkv_heads_decode puts them into one tile row
K_CHUNKS = (MAX_K_CHUNK, 128, 64, TILE)  # tokens of k at a time in chunked attention: the most that fit


class PrefillDoesNotFit(UserError):
    """No plan of a prefill batch fits a core's L1."""


def check_decode(config: QwenConfig, parallel: ParallelPlan, recipe: Recipe, decode: DecodePlan) -> None:
    """UserError if a decode step of the model has no plan on this split, or does not fit L1."""
    if parallel.q_heads > MAX_Q_HEADS:
        raise UserError(
            f"decode with tp {parallel.tp}: a chip would have {parallel.q_heads} of the model's "
            f"{config.num_attention_heads} query heads, ttnn's decode ops take {MAX_Q_HEADS}: "
            "use more chips a replica (tp)"
        )
    for of_layer in layer_recipes(config, recipe):
        fullest = max(decode_footprints(config, parallel, of_layer, decode), key=lambda footprint: footprint.bytes)
        if fullest.bytes > decode.l1_room:
            raise UserError(
                f"decode with tp {parallel.tp}: {fullest.op} takes {fullest.bytes:,} bytes of a core's L1, {decode.l1_room:,} are "
                "there: use more chips a replica (tp), or a grid of 8x8"
            )


@lru_cache(maxsize=None)
def fit_prefill(
    config: QwenConfig, parallel: ParallelPlan, recipe: Recipe, chip: Chip, rows: int, room: int
) -> PrefillPlan:
    """The plan of a prefill batch of `rows` rows. room: bytes of a core's L1 for a layer (DecodePlan.l1_room).

    PrefillDoesNotFit, naming the op and its bytes, if no plan fits.
    """
    grid = chip.grid
    row_tiles, hidden = rows // TILE, config.hidden_size // TILE
    head = config.head_dim
    q, qkv = parallel.q_width(head) // TILE, parallel.qkv_width(head) // TILE
    product = GateUpLayout.make(config, parallel, recipe, chip)
    wide = product.weights()[0]
    down_rows = max(d for d in divisors(row_tiles) if d <= grid.y)
    across = next(x for x in sorted(divisors(hidden), reverse=True) if x <= grid.x and fills(x, (qkv, hidden, wide)))
    cores = Grid(across, down_rows)
    sums_sharded = parallel.tp == 1 or hidden // across % parallel.tp == 0
    heads_sharded = q % across == 0 and head % TILE == 0

    def matmuls(k, n, format, **where) -> list[PrefillMatmul]:
        return list(prefill_matmuls(row_tiles, k, n, cores, format, **where))

    attention, shard = recipe.attention.format, hidden // across
    choices = [
        matmuls(hidden, qkv, attention, in_shard=shard, out_sharded=False, bias=config.qkv_bias),
        matmuls(q, hidden, attention, in_shard=q // across if heads_sharded else None, out_sharded=sums_sharded),
        matmuls(hidden, wide, recipe.mlp_in.format, in_shard=shard, out_sharded=not product.joined),
    ]
    gathered = recipe.all_reduce_dtype if parallel.tp > 1 else "bfloat16"

    def whole(qkv_plan, o_plan, gate_up, down) -> PrefillPlan:
        return PrefillPlan(
            rows, cores, grid.cores, config.hidden_size, parallel.q_heads, parallel.kv_heads, head, parallel.tp,
            qkv_plan, o_plan, gate_up, down, product.joined, config.head_norms, gathered,
        )  # fmt: skip

    def downs(gate_up: PrefillMatmul) -> list[PrefillMatmul]:
        shard = None if product.joined else gate_up.per_core_n
        return matmuls(product.tiles, hidden, recipe.mlp_out.format, in_shard=shard, out_sharded=sums_sharded)

    def fitting(ops: tuple[str, ...], candidates: Iterable[PrefillPlan]) -> PrefillPlan:
        """Return the first candidate with footprints of `ops` that fit L1."""
        least = None
        for candidate in candidates:
            worst = max(
                (m for m in prefill_footprints(candidate, recipe.kv_cache) if m.op in ops), key=lambda m: m.bytes
            )
            if worst.bytes <= room:
                return candidate
            least = min(least or worst, worst, key=lambda m: m.bytes)
        raise PrefillDoesNotFit(
            f"prefill of {rows} rows with tp {parallel.tp}: {least.op} takes {least.bytes:,} bytes of a core's L1, {room:,} are "
            "there: use more chips a replica (tp)"
        )

    first = [options[0] for options in choices]
    best = fitting(("qkv",), (whole(p, *first[1:], downs(first[2])[0]) for p in choices[0]))
    best = fitting(("o",), (whole(best.qkv, p, first[2], best.down) for p in choices[1]))
    pairs = (whole(best.qkv, best.o, wide_plan, d) for wide_plan in choices[2] for d in downs(wide_plan))
    best = fitting(("gate", "up", "cut", "product", "down"), pairs)
    longest = chunk_step(rows, max(BLOCKS))
    chunks = (replace(best, k_chunk_size=size) for size in K_CHUNKS if size <= longest)
    best = fitting(("attention to the cache",), chunks)
    return fitting(tuple({m.op for m in prefill_footprints(best, recipe.kv_cache)}), (best,))


def fit_prefill_layers(
    config: QwenConfig, parallel: ParallelPlan, recipe: Recipe, chip: Chip, rows: int, room: int
) -> list[PrefillPlan]:
    """The plan of each layer by its own recipe. PrefillDoesNotFit if the layers hold the residual on different cores."""
    recipes = [recipe.of_layer(i) for i in range(config.num_hidden_layers)]
    plans = [fit_prefill(config, parallel, of_layer, chip, rows, room) for of_layer in recipes]
    for i, of_layer in enumerate(plans):
        if of_layer.cores != plans[0].cores:
            raise PrefillDoesNotFit(
                f"recipe {recipes[i].name} of layer {i} puts the residual on {of_layer.cores}, layer 0 on {plans[0].cores}: "
                "keep gate and up of all layers in one format"
            )
    return plans


def fills(across: int, widths: tuple[int, ...]) -> bool:
    """Whether each of `across` columns of cores gets columns of every width. widths: in tiles."""
    return all(ceil_div(n, ceil_div(n, across)) == across for n in widths)


@lru_cache(maxsize=None)
def max_prefill_rows(config: QwenConfig, parallel: ParallelPlan, recipe: Recipe, chip: Chip, room: int) -> int:
    """Rows of the largest prefill batch that fits L1. A batch reads the weights once. PrefillDoesNotFit if 32 rows do not fit."""
    rows = MAX_PREFILL_ROWS
    while True:
        try:
            fit_prefill_layers(config, parallel, recipe, chip, rows, room)
            return rows
        except PrefillDoesNotFit:
            if rows == TILE:
                raise
            rows //= 2

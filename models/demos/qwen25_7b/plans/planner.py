"""Plans that fit a core's L1. Models without such a plan are refused."""

from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from typing import Iterable

from ..errors import UserError
from .blocks import BLOCKS, MAX_K_CHUNK
from .decode_plan import DecodeLayout
from .grids import TILE, Grid, ceil_div, divisors, most_even
from .l1 import ATTENTION, CUT, DOWN, GATE, O_PROJ, PRODUCT, QKV, UP, decode_ops, placed, prefill_ops
from .model_table import LayerSpec, ModelTable
from .prefill_plan import PrefillMatmul, PrefillPlan, chunk_step, prefill_matmuls

MAX_PREFILL_ROWS = 1024
MAX_Q_HEADS = TILE  # query heads on a chip: nlp_create_qkv_heads_decode puts them into one tile row
K_CHUNKS = (MAX_K_CHUNK, 128, 64, TILE)  # tokens of k at a time in chunked attention: the most that fit


class PrefillDoesNotFit(UserError):
    """No plan of a prefill batch fits a core's L1."""


def check_decode(table: ModelTable, decode: DecodeLayout) -> None:
    """UserError if a decode step of the model has no plan on this split, or does not fit L1."""
    tp = table.parallel.tp
    if table.parallel.q_heads > MAX_Q_HEADS:
        raise UserError(
            f"decode with tp {tp}: a chip would have {table.parallel.q_heads} of the model's "
            f"{table.dims.num_attention_heads} query heads, ttnn's decode ops take {MAX_Q_HEADS}: "
            "use more chips a replica (tp)"
        )
    heads, cores = table.parallel.q_heads + 2 * table.parallel.kv_heads, decode.grid.cores
    if heads > cores:
        raise UserError(
            f"decode with tp {tp}: a chip would have {heads} heads of q, k and v, and its {cores} cores take one each: "
            "use more chips a replica (tp)"
        )
    for layer, _ in table.kinds:
        fullest = max(placed(decode_ops(layer, decode)), key=lambda footprint: footprint.bytes)
        if fullest.bytes > decode.layer_l1:
            raise UserError(
                f"decode with tp {tp}: {fullest.op} takes {fullest.bytes:,} bytes of a core's L1, {decode.layer_l1:,} "
                "are there: use more chips a replica (tp), or a grid of 8x8"
            )


@lru_cache(maxsize=None)
def fit_prefill(layer: LayerSpec, rows: int, layer_l1: int) -> PrefillPlan:
    """The plan of a prefill batch of `rows` rows. layer_l1: DecodeLayout.layer_l1.

    PrefillDoesNotFit, naming the op and its bytes, if no plan fits.
    """
    row_tiles, hidden, q = (extent // TILE for extent in (rows, layer.dims.hidden_size, layer.o.weight.shape[0]))
    grid, wide = layer.chip.grid, layer.gate_up[0]
    widths = hidden, layer.qkv.weight.shape[1] // TILE, wide.weight.shape[1] // TILE
    across = max(x for x in divisors(hidden) if x <= grid.x and fills(x, widths))
    cores = Grid(across, most_even(row_tiles, grid.y))
    shard = hidden // across
    sums_sharded = layer.parallel.tp == 1 or shard % layer.parallel.tp == 0
    heads_shard = q // across if q % across == 0 and layer.dims.head_width % TILE == 0 else None
    matmuls = partial(prefill_matmuls, row_tiles=row_tiles, cores=cores)

    def downs(gate_up: PrefillMatmul) -> list[PrefillMatmul]:
        return matmuls(layer.down, None if layer.joined else gate_up.per_core_n, sums_sharded)

    qkvs, os = matmuls(layer.qkv, shard, False), matmuls(layer.o, heads_shard, sums_sharded)
    wides = matmuls(wide, shard, not layer.joined)
    plan = PrefillPlan(layer, rows, cores, qkvs[0], os[0], wides[0], downs(wides[0])[0])
    pairs = (replace(plan, mlp_in=w, down=down) for w in wides for down in downs(w))
    plan = first_fitting(pairs, layer_l1, GATE, UP, CUT, PRODUCT, DOWN)
    plan = first_fitting((replace(plan, qkv=qkv) for qkv in qkvs), layer_l1, QKV)
    plan = first_fitting((replace(plan, o=o) for o in os), layer_l1, O_PROJ)
    longest = chunk_step(rows, max(BLOCKS))
    chunks = (replace(plan, k_chunk_size=size) for size in K_CHUNKS if size <= longest)
    plan = first_fitting(chunks, layer_l1, ATTENTION)
    return first_fitting([plan], layer_l1)


def first_fitting(plans: Iterable[PrefillPlan], layer_l1: int, *ops: str) -> PrefillPlan:
    """The first plan with footprints of `ops` that fit L1; default: of all ops."""
    least, plan = None, None
    for plan in plans:
        footprints = chain(*(placed(prefill_ops(plan, cached)) for cached in (False, True)))
        larger = next((f for f in footprints if f.bytes > layer_l1 and (not ops or f.op in ops)), None)
        if larger is None:
            return plan
        least = min(least or larger, larger, key=lambda footprint: footprint.bytes)
    raise PrefillDoesNotFit(
        f"prefill of {plan.rows} rows with tp {plan.layer.parallel.tp}: {least.op} takes {least.bytes:,} bytes of a "
        f"core's L1, {layer_l1:,} are there: use more chips a replica (tp)"
    )


def fit_prefill_layers(table: ModelTable, rows: int, layer_l1: int) -> list[PrefillPlan]:
    """The plan of each layer by its recipe. PrefillDoesNotFit if layers hold the residual on different cores."""
    plans = {layer.recipe: fit_prefill(layer, rows, layer_l1) for layer, _ in table.kinds}
    recipes = [table.recipe.of_layer(i) for i in range(table.dims.num_hidden_layers)]
    for i, recipe in enumerate(recipes):
        cores, first = (plans[r].cores for r in (recipe, recipes[0]))
        if cores != first:
            raise PrefillDoesNotFit(
                f"recipe {recipe.name} of layer {i} puts the residual on {cores}, layer 0 on {first}: "
                "keep gate and up of all layers in one format"
            )
    return [plans[recipe] for recipe in recipes]


def fills(across: int, widths: tuple[int, ...]) -> bool:
    """Whether each of `across` columns of cores gets columns of every width. widths: in tiles."""
    return all(ceil_div(n, ceil_div(n, across)) == across for n in widths)


@lru_cache(maxsize=None)
def max_prefill_rows(table: ModelTable, layer_l1: int) -> int:
    """Rows of the largest prefill batch that fits L1. PrefillDoesNotFit if 32 rows do not fit."""
    rows = MAX_PREFILL_ROWS
    while True:
        try:
            fit_prefill_layers(table, rows, layer_l1)
            return rows
        except PrefillDoesNotFit:
            if rows == TILE:
                raise
            rows //= 2

"""What lies in a core's L1 in a decode step, op by op, and the refusal of models for which that is too much."""

from typing import Iterator

from models.common.errors import UserError
from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.plans.decode_matmul import DECODE_L1, plan_decode
from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
from models.demos.qwen25_7b.plans.gate_up_plan import HALF_CORES, GateUpPlan
from models.demos.qwen25_7b.plans.grids import TILE, ceil_div, most_even
from models.demos.qwen25_7b.plans.l1 import Moment, interleaved, sharded

MOST_HEADS = TILE  # of a user on a chip: nlp_create_qkv_heads_decode puts them into one tile row


def decode_moments(config: QwenConfig, plan: ParallelPlan, recipe: Recipe, decode: DecodePlan) -> Iterator[Moment]:
    """A layer, op by op. Circular buffers are those of the matmuls, which are the largest; 0 elsewhere: not counted.

    UserError as check_decode says.
    """
    check_heads(config, plan)
    hidden, head = config.hidden_size // TILE, config.head_dim
    head_tiles, cores = ceil_div(head, TILE), decode.residual.cores
    product = GateUpPlan.make(config, plan, recipe)

    def matmul(k: int, n: int, in_cores: int, format: str, out_cores: int, divides: int = 0):
        try:
            return plan_decode(k, n, in_cores, format, out_cores=out_cores, divides=divides)
        except (ValueError, StopIteration) as error:
            raise UserError(
                f"decode with tp {plan.tp}: no plan of a matmul of {k} x {n} tiles in {format} fits {out_cores} cores and "
                f"{DECODE_L1:,} bytes of each one's L1: use more chips a replica (tp)"
            ) from error

    def rows(tiles: int) -> int:
        return sharded(TILE, tiles * TILE)

    grid = decode.grid.cores
    qkv = matmul(hidden, plan.qkv_width(head) // TILE, cores, recipe.attention.format, grid, head_tiles)
    o = matmul(plan.q_width(head) // TILE, hidden, plan.q_heads, recipe.attention.format, cores)
    most = 2 * HALF_CORES if product.joined else grid
    gate = matmul(hidden, product.weights()[0], cores, recipe.mlp_in.format, most)
    between = most_even(product.tiles, grid) if product.joined else gate.out_cores
    down = matmul(product.tiles, hidden, between, recipe.mlp_out.format, cores)

    sent = recipe.summands if plan.tp > 1 else "bfloat16"
    tables, h = ("cos and sin", 2 * rows(head_tiles)), ("residual", rows(hidden // cores))
    x, total = ("normed", h[1]), ("sum", h[1])
    of_qkv = ("qkv", rows(qkv.per_core_n))
    q, k, v = ((name, rows(head_tiles)) for name in "qkv")
    spread = ("attention", interleaved(decode.batch * TILE, head, banks=grid))
    attended = ("attention on its cores", rows(head_tiles))
    side_by_side = ("heads side by side", rows(head_tiles))
    wide = [(name, rows(gate.per_core_n)) for name in (("gate and up",) if product.joined else ("gate", "up"))]
    hidden_rows = ("product", rows(product.tiles // between))

    def moment(op: str, *tensors: tuple[str, int], buffers: int = 0) -> Moment:
        return Moment(op, (tables, h, *tensors), buffers)

    def sums(summand: tuple[str, int]) -> Iterator[Moment]:
        if plan.tp > 1:
            yield moment("all-reduce", summand, total)
            summand = total
        yield moment("add", summand, ("new residual", h[1]))

    yield moment("norm", x)
    yield moment("qkv", x, of_qkv, buffers=qkv.l1_bytes)
    yield moment("heads", of_qkv, q, k, v)
    yield moment("rotary", q, k, v, ("q rotated", q[1]), ("k rotated", k[1]))
    yield moment("cache", q, k, v)
    yield moment("attention", q, spread)
    yield moment("onto cores", spread, attended)
    yield moment("heads side by side", attended, side_by_side)
    summand = ("summand", sharded(TILE, o.per_core_n * TILE, sent))
    yield moment("o", side_by_side, summand, buffers=o.l1_bytes)
    yield from sums(summand)
    yield moment("norm", x)
    yield moment("gate", x, wide[0], buffers=gate.l1_bytes)
    if not product.joined:
        yield moment("up", x, *wide, buffers=gate.l1_bytes)
    yield moment("product", x, *wide, hidden_rows)
    summand = ("summand", sharded(TILE, down.per_core_n * TILE, sent))
    yield moment("down", hidden_rows, summand, buffers=down.l1_bytes)
    yield from sums(summand)


def check_heads(config: QwenConfig, plan: ParallelPlan) -> None:
    """UserError where a chip has more query heads than a tile row holds."""
    if plan.q_heads > MOST_HEADS:
        raise UserError(
            f"decode with tp {plan.tp}: a chip would have {plan.q_heads} of the model's {config.num_attention_heads} query "
            f"heads, ttnn's decode ops take {MOST_HEADS}: use more chips a replica (tp)"
        )


def check_decode(config: QwenConfig, plan: ParallelPlan, recipe: Recipe, decode: DecodePlan) -> None:
    """UserError, in one line, for a model that a step cannot be planned for on this split, or that would not fit L1."""
    recipes = {recipe.of_layer(i): None for i in range(config.num_hidden_layers)}  # each once, in order
    for of_layer in recipes:
        fullest = max(decode_moments(config, plan, of_layer, decode), key=lambda moment: moment.bytes)
        if fullest.bytes > decode.l1_room:
            raise UserError(
                f"decode with tp {plan.tp}: {fullest.op} takes {fullest.bytes:,} bytes of a core's L1, {decode.l1_room:,} are "
                "there: use more chips a replica (tp), or a grid of 8x8"
            )

"""Bytes of tensors and circular buffers in a core's L1 while each op of a layer runs.

A tensor has one address on all cores in ttnn. A shard therefore counts on every core, also on cores without one.
"""

from dataclasses import dataclass
from math import prod
from typing import Iterator

from .decode_plan import DecodePlan
from .grids import TILE, TILE_BYTES, ceil_div
from .model_table import Layer
from .prefill_plan import PrefillPlan

Tensor = tuple[str, int]  # name, bytes of a core

# Ops with a plan to choose (plans/planner.py): the projections, the MLP's other ops, and chunked attention.
QKV, O_PROJ, GATE, UP, CUT, PRODUCT, DOWN = "qkv", "o", "gate", "up", "cut", "product", "down"
CHUNKED_ATTENTION = "attention to the cache"


@dataclass(frozen=True)
class OpFootprint:
    """Bytes of a core's L1 while an op runs."""

    op: str
    tensors: tuple[Tensor, ...]  # that are alive
    buffers: int  # circular buffers of the op
    hole: int = 0  # that freed tensors left, too small for the op's result

    @property
    def bytes(self) -> int:
        return self.buffers + self.hole + sum(size for _, size in self.tensors)


def decode_footprints(layer: Layer, decode: DecodePlan) -> Iterator[OpFootprint]:
    """The footprint of each op of a layer in a decode step.

    Only the matmuls' circular buffers are counted; they are the largest. UserError if a matmul has no plan.
    """
    config, hidden, head = layer.config, layer.config.hidden_size // TILE, layer.config.head_width
    head_tiles, cores, grid = ceil_div(head, TILE), decode.residual.cores, decode.grid.cores
    qkv, o, gate, *_, down = (linear.decode_matmul for linear in layer.linears)

    def tile_row(tiles: int) -> int:
        return sharded(TILE, tiles * TILE)

    sent = decode.all_reduce.dtype
    tables, residual = ("cos and sin", 2 * tile_row(head_tiles)), tile_row(hidden // cores)
    h, x, total = ("residual", residual), ("normed", residual), ("sum", residual)
    qkv_rows = ("qkv", tile_row(qkv.per_core_n))
    q, k, v = ((name, tile_row(head_tiles)) for name in "qkv")
    attended = ("attention", interleaved(decode.slots * TILE, head, grid))
    attended_sharded = ("attention on its cores", tile_row(head_tiles))
    concatenated = ("heads side by side", tile_row(head_tiles))
    names = ("gate and up",) if layer.joined else ("gate", "up")
    wide = [(name, tile_row(gate.per_core_n)) for name in names]
    product = ("product", tile_row(down.k_tiles // down.in_cores))

    def footprint(op: str, *tensors: Tensor, buffers: int = 0) -> OpFootprint:
        return OpFootprint(op, (tables, h, *tensors), buffers)

    def all_reduce(partial_sum: Tensor) -> Iterator[OpFootprint]:
        method = decode.all_reduce.method
        if method == "all_reduce_async":
            yield footprint("all-reduce", partial_sum, total)
        elif method != "none":
            columns = config.hidden_size // layer.parallel.tp
            scattered = ("sum of a chip's columns", interleaved(TILE, columns, grid))
            yield footprint("reduce-scatter", partial_sum, scattered)
            yield footprint("all-gather", scattered, total)
        summed = partial_sum if method == "none" else total
        yield footprint("add", summed, ("new residual", residual))

    yield footprint("norm", x)
    yield footprint(QKV, x, qkv_rows, buffers=qkv.l1_bytes)
    yield footprint("heads", qkv_rows, q, k, v)
    if config.head_norms:
        yield footprint("head norms", q, k, v, ("q normed", q[1]), ("q, interleaved", q[1]))
    yield footprint("rotary", q, k, v, ("q rotated", q[1]), ("k rotated", k[1]))
    if layer.centered_bias:
        yield footprint("center keys", q, k, v, ("rows of the table", k[1]), ("k centered", k[1]))
    yield footprint("cache", q, k, v)
    yield footprint("attention", q, attended)
    yield footprint("onto cores", attended, attended_sharded)
    yield footprint("heads side by side", attended_sharded, concatenated)
    partial_sum = ("partial sum", sharded(TILE, o.per_core_n * TILE, sent))
    yield footprint(O_PROJ, concatenated, partial_sum, buffers=o.l1_bytes)
    yield from all_reduce(partial_sum)
    yield footprint("norm", x)
    yield footprint(GATE, x, wide[0], buffers=gate.l1_bytes)
    if not layer.joined:
        yield footprint(UP, x, *wide, buffers=gate.l1_bytes)
    yield footprint(PRODUCT, x, *wide, product)
    partial_sum = ("partial sum", sharded(TILE, down.per_core_n * TILE, sent))
    yield footprint(DOWN, product, partial_sum, buffers=down.l1_bytes)
    yield from all_reduce(partial_sum)


def prefill_footprints(plan: PrefillPlan) -> Iterator[OpFootprint]:
    """The footprint of each op of a layer in a prefill batch. A cache in 8 bits takes copies of k and v."""
    layer = plan.layer
    config, parallel, kv_format = layer.config, layer.parallel, layer.recipe.kv_cache
    head_dim, hidden, chips = config.head_width, config.hidden_size, parallel.tp
    q_width, kv_width = parallel.q_width(head_dim), parallel.kv_width(head_dim)

    def spread(columns: int, format: str = "bfloat16") -> int:
        return interleaved(plan.rows, columns, layer.chip.grid.cores, format)

    def placed(name: str, is_sharded: bool, columns: int, format: str = "bfloat16") -> Tensor:
        if not is_sharded:
            return name, spread(columns, format)
        return name, sharded(plan.rows // plan.cores.y, columns // plan.cores.x, format)

    residual = sharded(plan.rows // plan.cores.y, hidden // plan.cores.x)
    tables, h, x = (("cos and sin", 2 * spread(head_dim)), ("residual", residual), ("normed", residual))
    qkv = ("qkv", spread(q_width + 2 * kv_width))
    q, k, v = ("q", spread(q_width)), ("k", spread(kv_width)), ("v", spread(kv_width))
    copies = [("k in 8 bits", spread(kv_width, kv_format))] * (kv_format != "bfloat16")
    attended = placed("attention", plan.o.in_sharded, q_width)
    partial_sum = placed("partial sum", plan.o.out_sharded, hidden)
    columns, name = hidden // chips, "sum of a chip's columns"
    scattered = placed(name, plan.o.out_sharded, columns)
    rounded = placed(f"{name} in {plan.gathered}", plan.o.out_sharded, columns, plan.gathered)
    total = placed("sum", True, hidden, plan.gathered)
    names = ("gate and up",) if layer.joined else ("gate", "up")
    # gate, up, or both in one tensor
    if plan.gate_up.out_sharded:
        wide_bytes = sharded(plan.rows // plan.cores.y, plan.gate_up.per_core_n * TILE)
    else:
        wide_bytes = spread(plan.gate_up.n_tiles * TILE)
    wide = [(name, wide_bytes) for name in names]

    def footprint(op: str, buffers: int, *tensors: Tensor, hole: int = 0) -> OpFootprint:
        return OpFootprint(op, (tables, *tensors), buffers, hole)

    def all_reduce() -> Iterator[OpFootprint]:
        if chips > 1:
            buffer = ("its buffer", partial_sum[1])
            yield footprint("reduce-scatter", 196_608, h, partial_sum, buffer, scattered)
            sent = scattered
            if plan.gathered != "bfloat16":
                yield footprint("round the sum", 0, h, scattered, rounded)
                sent = rounded
            yield footprint("all-gather", 12_288, h, sent, total)
        yield footprint("add", 0, h, total, ("new residual", residual))

    yield footprint("norm", _norm_buffers(plan), h, x)
    yield footprint(QKV, plan.qkv.buffers, h, x, qkv)
    yield footprint("heads", 0, h, qkv, q, k, v)
    if config.head_norms:
        yield footprint("head norms", 0, h, q, k, v, ("q normed", q[1]))
    rotary_buffers = 25_088 * ceil_div(head_dim, TILE)
    yield footprint("rotary", rotary_buffers, h, q, ("q rotated", q[1]), k, v)
    if layer.centered_bias:
        yield footprint("center keys", 0, h, q, k, v, ("rows of the table", k[1]), ("k centered", k[1]))
    yield footprint("cache", 0, h, q, k, v, *copies)
    buffers = _attention_buffers(plan, plan.q_chunk_size, "bfloat16")
    yield footprint("attention", buffers, h, q, k, v, attended)
    heads = ("attention, head by head", q[1])
    buffers = _attention_buffers(plan, plan.k_chunk_size, kv_format)
    yield footprint(CHUNKED_ATTENTION, buffers, h, q, heads)
    concat_buffers = 2 * ceil_div(q_width, TILE) * TILE_BYTES["bfloat16"]
    yield footprint("heads side by side", concat_buffers, h, heads, ("attention", q[1]))
    read = ("attention", max(attended[1], q[1]))
    # Attention's result lies below q, k, v and the q before its rotation, which are free by now.
    heads_hole = 2 * q[1] + k[1] + v[1]
    hole = heads_hole if partial_sum[1] > heads_hole else 0
    yield footprint(O_PROJ, plan.o.buffers, h, read, partial_sum, hole=hole)
    yield from all_reduce()
    yield footprint("norm", _norm_buffers(plan), h, x)
    yield footprint(GATE, plan.gate_up.buffers, h, x, wide[0])
    if layer.joined:
        halves = [(name, spread(plan.down.k_tiles * TILE)) for name in ("gate", "up")]
        yield footprint(CUT, 0, h, *wide, *halves)
        wide = halves
    else:
        yield footprint(UP, plan.gate_up.buffers, h, x, *wide)
    product_buffers = (7 if layer.joined else 2) * TILE_BYTES["bfloat16"]
    yield footprint(PRODUCT, product_buffers, h, *wide)
    yield footprint(DOWN, plan.down.buffers, h, ("product", wide[0][1]), partial_sum)
    yield from all_reduce()


def _norm_buffers(plan: PrefillPlan) -> int:
    """Fitted to a mock's circular buffers for blocks of 1 to 4 tiles by 1 to 20."""
    height, width = plan.rows // TILE // plan.cores.y, plan.layer.config.hidden_size // TILE // plan.cores.x
    return 8_192 * height * width + 12_288 * height + 2_048 * width + 45_056


def _attention_buffers(plan: PrefillPlan, k_chunk_size: int, kv_format: str) -> int:
    """Two chunks each of q, k and v, scores, a mask and two float32 results. Fitted to a mock, to some bytes."""
    q_tiles, k_tiles = plan.q_chunk_size // TILE, k_chunk_size // TILE
    head_tiles = ceil_div(plan.layer.config.head_width, TILE)
    scores = q_tiles * k_tiles * (TILE_BYTES["float32"] + TILE_BYTES["bfloat16"])
    keys_and_values = 4 * k_tiles * head_tiles * TILE_BYTES[kv_format]
    return keys_and_values + scores + q_tiles * (head_tiles * 12_288 + 6_144) + 20_000


def interleaved(rows: int, columns: int, cores: int, format: str = "bfloat16") -> int:
    """Bytes of a core that a tiled tensor [rows, columns] takes when `cores` cores hold it."""
    return ceil_div(tiles(rows, columns), cores) * TILE_BYTES[format]


def sharded(height: int, width: int, format: str = "bfloat16") -> int:
    """Bytes of a shard of height x width elements, in whole tiles."""
    return tiles(height, width) * TILE_BYTES[format]


def tiles(*extents: int) -> int:
    return prod(ceil_div(extent, TILE) for extent in extents)

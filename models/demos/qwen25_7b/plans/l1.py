"""Bytes of tensors and circular buffers in a core's L1 while each op of a layer runs.

A tensor has one address on all cores in ttnn. A shard therefore counts on every core, also on cores without one.
"""

from dataclasses import dataclass
from math import prod
from typing import Iterable, Iterator

from .decode_plan import DecodeLayout, DecodeMatmul
from .grids import TILE, TILE_BYTES, ceil_div
from .model_table import LayerSpec
from .prefill_plan import PrefillMatmul, PrefillPlan, q_chunk_size

Tensor = tuple[str, int]  # name, bytes of a core
Op = tuple[str, int, tuple[Tensor, ...]]  # name, bytes of circular buffers, tensors that are alive

# Ops with a plan to choose (plans/planner.py): the projections, the MLP's other ops, and attention.
QKV, ATTENTION, O_PROJ, GATE, UP, CUT, PRODUCT, DOWN = "qkv", "attention", "o", "gate", "up", "cut", "product", "down"


@dataclass(frozen=True)
class OpFootprint:
    """Bytes of a core's L1 while an op runs."""

    op: str
    tensors: tuple[Tensor, ...]  # that are alive
    buffers: int  # circular buffers of the op
    hole: int  # that freed tensors left above the lowest tensor

    @property
    def bytes(self) -> int:
        return self.buffers + self.hole + sum(size for _, size in self.tensors)


def placed(ops: Iterable[Op]) -> Iterator[OpFootprint]:
    """The footprints of ops that follow one another: a tensor stays where it is while each op has one of its name.

    A tensor's place is the uppermost free one that holds it, as in ttnn (FreeListOpt's first fit).
    """
    places: dict[str, tuple[int, int]] = {}  # name -> (start, end), bytes below the top of L1
    for op, buffers, tensors in ops:
        alive = dict(tensors)
        places = {name: place for name, place in places.items() if name in alive}
        for name in [name for name in alive if name not in places]:
            start = 0
            for taken_start, taken_end in sorted(places.values()):
                if taken_start - start >= alive[name]:
                    break
                start = taken_end
            places[name] = start, start + alive[name]
        lowest = max(end for _, end in places.values())
        yield OpFootprint(op, tensors, buffers, lowest - sum(alive.values()))


def decode_ops(layer: LayerSpec, decode: DecodeLayout) -> Iterator[Op]:
    """The ops of a layer in a decode step. UserError if a matmul has no plan.

    Only the matmuls' circular buffers are counted; they are the largest.
    """
    config, hidden, head = layer.dims, layer.dims.hidden_size // TILE, layer.dims.head_width
    head_tiles, cores, grid = ceil_div(head, TILE), decode.residual.cores, decode.grid.cores
    qkv, o, gate, *_, down = (linear.decode_matmul for linear in layer.linears)

    def tile_row(tiles: int) -> int:
        return sharded(TILE, tiles * TILE)

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

    def footprint(op: str, *tensors: Tensor, buffers: int = 0) -> Op:
        return op, buffers, (h, tables, *tensors)

    def projected(op: str, x: Tensor, matmul: DecodeMatmul) -> Iterator[Op]:
        """The matmul of a projection by rows, the all-reduce, and the sum with the residual."""
        method, dtype = decode.all_reduce.method, decode.all_reduce.dtype
        partial_sum = ("partial sum", sharded(TILE, matmul.per_core_n * TILE, dtype))
        yield footprint(op, x, partial_sum, buffers=matmul.l1_bytes)
        if method == "all_reduce_async":
            yield footprint("all-reduce", partial_sum, total)
        elif method != "none":
            columns = config.hidden_size // layer.parallel.tp
            scattered = ("sum of a chip's columns", interleaved(TILE, columns, grid))
            yield footprint("reduce-scatter", partial_sum, scattered)
            yield footprint("all-gather", scattered, total)
        yield footprint("add", partial_sum if method == "none" else total)

    yield footprint("norm", x)
    yield footprint(QKV, x, qkv_rows, buffers=qkv.l1_bytes)
    yield footprint("heads", qkv_rows, q, k, v)
    if config.head_norms:
        normed = ("q normed", q[1]), ("k normed", k[1])
        for head, result, *others in ((q, normed[0], k, v), (k, normed[1], normed[0], v)):
            steps = head, ("interleaved", attended[1]), ("normed, interleaved", attended[1]), result
            for before, after in zip(steps, steps[1:]):
                yield footprint("head norms", *others, before, after)
        q, k = normed
    rotated = ("q rotated", q[1]), ("k rotated", k[1])
    yield footprint("rotary", q, k, v, *rotated)
    q, k = rotated
    if layer.centered_bias:
        yield footprint("center keys", q, k, v, ("rows of the table", k[1]))
    yield footprint("cache", q, k, v)
    yield footprint(ATTENTION, q, attended)
    yield footprint("onto cores", attended, attended_sharded)
    yield footprint("heads side by side", attended_sharded, concatenated)
    yield from projected(O_PROJ, concatenated, o)
    yield footprint("norm", x)
    yield footprint(GATE, x, wide[0], buffers=gate.l1_bytes)
    if not layer.joined:
        yield footprint(UP, x, *wide, buffers=gate.l1_bytes)
    yield footprint(PRODUCT, x, *wide, product)
    yield from projected(DOWN, product, down)


def prefill_ops(plan: PrefillPlan, cached_prefix: bool) -> Iterator[Op]:
    """The ops of a layer in a prefill batch of whole prompts, or of chunks after what is cached.

    A cache in 8 bits takes copies of k and v.
    """
    layer = plan.layer
    config, parallel, kv_format = layer.dims, layer.parallel, layer.recipe.kv_cache
    head_dim, hidden, chips = config.head_width, config.hidden_size, parallel.tp
    q_width, kv_width = parallel.q_heads * head_dim, parallel.kv_heads * head_dim

    def spread(columns: int, format: str = "bfloat16") -> int:
        return interleaved(plan.rows, columns, layer.chip.grid.cores, format)

    def on_cores(columns: int, format: str = "bfloat16") -> int:
        return sharded(plan.rows // plan.cores.y, columns // plan.cores.x, format)

    residual = on_cores(hidden)
    h, tables, x = ("residual", residual), ("cos and sin", 2 * spread(head_dim)), ("normed", residual)
    qkv = ("qkv", spread(q_width + 2 * kv_width))
    q, k, v = ("q", spread(q_width)), ("k", spread(kv_width)), ("v", spread(kv_width))
    copies = [("k in 8 bits", spread(kv_width, kv_format))] * (kv_format != "bfloat16")
    place, columns = on_cores if plan.o.out_sharded else spread, hidden // chips
    scattered = "sum of a chip's columns", place(columns)
    rounded = f"sum of a chip's columns in {plan.gathered}", place(columns, plan.gathered)
    total = "sum", on_cores(hidden, plan.gathered)

    def result(name: str, matmul: PrefillMatmul) -> Tensor:
        tiles = matmul.per_core_n * plan.cores.x if matmul.out_sharded else matmul.n_tiles
        return name, (on_cores if matmul.out_sharded else spread)(tiles * TILE)

    # gate, up, or both in one tensor
    wide = [result(name, plan.mlp_in) for name in (("gate and up",) if layer.joined else ("gate", "up"))]

    def footprint(op: str, buffers: int, *tensors: Tensor) -> Op:
        return op, buffers, (h, tables, *tensors)

    def projected(op: str, x: Tensor, matmul: PrefillMatmul) -> Iterator[Op]:
        """The matmul of a projection by rows, the all-reduce, and the sum with the residual."""
        partial_sum = summed = result("partial sum", matmul)
        yield footprint(op, matmul.buffers, x, partial_sum)
        if chips > 1:
            buffer = ("its buffer", partial_sum[1])
            yield footprint("reduce-scatter", 196_608, partial_sum, scattered, buffer)
            sent, summed = scattered, total
            if plan.gathered != "bfloat16":
                yield footprint("round the sum", 0, scattered, rounded)
                sent = rounded
            yield footprint("all-gather", 12_288, sent, total)
        yield footprint("add", 0, summed)

    yield footprint("norm", _norm_buffers(plan), x)
    yield footprint(QKV, plan.qkv.buffers, x, qkv)
    yield footprint("heads", 0, qkv, q, k, v)
    if config.head_norms:
        normed = ("q normed", q[1]), ("k normed", k[1])
        yield footprint("head norms", 0, q, k, v, normed[0])
        yield footprint("head norms", 0, normed[0], k, v, normed[1])
        q, k = normed
    rotated = ("q rotated", q[1]), ("k rotated", k[1])
    rotary_buffers = 25_088 * ceil_div(head_dim, TILE)
    yield footprint("rotary", rotary_buffers, q, k, v, rotated[0])
    yield footprint("rotary", rotary_buffers, rotated[0], k, v, rotated[1])
    q, k = rotated
    if layer.centered_bias:
        yield footprint("center keys", 0, q, k, v, ("rows of the table", k[1]))
    yield footprint("cache", 0, q, k, v, *copies)
    if cached_prefix:
        if head_dim != config.head_dim:
            scaled = ("q scaled", q[1])
            yield footprint("scale q", 0, q, scaled)
            q = scaled
        heads, attended = ("attention, head by head", q[1]), ("attention", q[1])
        buffers = _attention_buffers(plan, plan.k_chunk_size, kv_format)
        yield footprint(ATTENTION, buffers, q, heads)
        yield footprint("heads side by side", 2 * ceil_div(q_width, TILE) * TILE_BYTES["bfloat16"], heads, attended)
    else:
        attended = "attention", (on_cores if plan.o.in_sharded else spread)(q_width)
        yield footprint(ATTENTION, _attention_buffers(plan, q_chunk_size(plan.rows), "bfloat16"), q, k, v, attended)
    yield from projected(O_PROJ, attended, plan.o)
    yield footprint("norm", _norm_buffers(plan), x)
    yield footprint(GATE, plan.mlp_in.buffers, x, wide[0])
    if layer.joined:
        halves = [(name, spread(plan.down.k_tiles * TILE)) for name in ("gate", "up")]
        yield footprint(CUT, 0, *wide, *halves)
        wide = halves
    else:
        yield footprint(UP, plan.mlp_in.buffers, x, *wide)
    product_buffers = (7 if layer.joined else 2) * TILE_BYTES["bfloat16"]
    yield footprint(PRODUCT, product_buffers, *wide)
    yield from projected(DOWN, wide[0], plan.down)  # the product is in gate's memory


def _norm_buffers(plan: PrefillPlan) -> int:
    """Fitted to a mock's circular buffers for blocks of 1 to 4 tiles by 1 to 20."""
    height, width = plan.rows // TILE // plan.cores.y, plan.layer.dims.hidden_size // TILE // plan.cores.x
    return 8_192 * height * width + 12_288 * height + 2_048 * width + 45_056


def _attention_buffers(plan: PrefillPlan, k_chunk_size: int, kv_format: str) -> int:
    """Two chunks each of q, k and v, scores, a mask and two float32 results. Fitted to a mock, to some bytes."""
    q_tiles, k_tiles = q_chunk_size(plan.rows) // TILE, k_chunk_size // TILE
    head_tiles = ceil_div(plan.layer.dims.head_width, TILE)
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

"""A device operation as a case of the laws. Pure functions."""

from dataclasses import replace
from math import prod
from typing import Optional

from .device_ops import TILE, Op, Tensor, ceil_div
from .kinds import AUTO_WIDTH, DTYPES, LONG_RANGE, PHASES, kind_of, name_of
from .laws import Case
from .op_costs import Work, full_cache, whole_tiles


def case_of(
    op: Op,
    work: Work,
    *,
    chips: int,
    grid_cores: int,
    links: int,
    users: Optional[int],
    position: Optional[int],
    tokens: int,
    arch: str = "wormhole",
) -> Optional[Case]:
    """What the laws know of an operation. None: an operation of no kind."""
    name = name_of(op.name)
    kind = kind_of(name)
    if not kind or not op.inputs:
        return None
    x = op.inputs[0]
    w = op.inputs[1] if len(op.inputs) > 1 else x
    result = op.result or x
    case = Case(
        kind=kind,
        arch=arch,
        name=name + "silu" * op.activation,
        x=_short(x),
        w=_short(w),
        out=_short(result),
        phases=PHASES.get((op.fidelity or "").lower(), 0),
        fp32=op.fp32_dest,
        cores=min(result.cores or (x.cores if x.buffer == "L1" else 0) or grid_cores, grid_cores),
        x_dram=x.in_dram,
        w_dram=w.in_dram,
        out_dram=result.in_dram,
        sharded=x.buffer == "L1" and x.shard is not None,
    )
    if kind == "matmul":
        return _matmul_case(op, case, x, w, grid_cores)
    if kind == "collective":
        return work.collective and replace(
            case, name=work.collective.op, bytes=work.collective.tensor_bytes, chips=chips,
            ring=op.ring, links=links, workers=op.workers,
        )  # fmt: skip
    moved = replace(
        case,
        m=prod(whole_tiles(x.shape)[:-1]) // TILE,
        n=ceil_div(x.shape[-1], TILE),
        rows=(min if kind == "tilize" else max)(prod(t.shape[:-1]) for t in (x, result)),
        spread=kind == "binary" and _tile_count(w) < _tile_count(x),
        tiles=_tile_count(x),
        result=_tile_count(result),
        read=work.scattered - (result.bytes if result.in_dram else 0) if not work.flops else 0,
        written=result.bytes if result.in_dram or name == "shardedtointerleaved" else 0,
    )
    if kind in ("norm", "rotary", "topk", "embedding") and not moved.sharded:
        moved = replace(moved, cores=min(grid_cores, moved.m) if kind in ("norm", "rotary") else grid_cores)
    return _attention_case(op, moved, x, w, grid_cores, users and users * tokens, position)


def _matmul_case(op: Op, case: Case, x: Tensor, w: Tensor, grid_cores: int) -> Case:
    product = op.result if op.name in ("Matmul", "Conv2d") and op.result else x
    k, n = (extent // TILE for extent in whole_tiles(w.shape)[-2:])
    rows = prod(whole_tiles(product.shape)[:-1]) // TILE
    batch = prod(w.shape[:-2])
    case = replace(
        case,
        m=max(1, rows // batch),
        k=k,
        n=n,
        batch=batch,
        width=op.in0_block_w or AUTO_WIDTH,
        passes=op.passes,
        fused=op.activation,
    )
    if op.dram_sharded and w.shard:
        return replace(case, kind="dram_sharded", cores=0, readers=op.readers)
    return replace(case, kind="rows_matmul" if case.m <= LONG_RANGE else "wide_matmul")


def _attention_case(
    op: Op, case: Case, x: Tensor, w: Tensor, grid_cores: int, users: Optional[int], position: Optional[int]
) -> Case:
    kind = case.kind
    if kind == "sdpa_decode":
        tiles = ceil_div(x.shape[2], TILE)
        count = users // tiles if users else x.shape[1]
        kv_heads, block, dim = w.shape[1:]
        keys = position if position is not None else full_cache(op, block)
        return replace(
            case, users=count, heads=x.shape[2], kv_heads=kv_heads, head_dim=dim, keys=keys, cores=grid_cores
        )
    if kind == "sdpa_prefill":
        batch, heads, rows, dim = x.shape
        before = (position or 0) if op.causal else 0
        return replace(
            case, prefill=True, batch=batch, heads=heads, head_dim=dim, tiles=ceil_div(rows, TILE),
            keys=rows + before, q_chunk=op.q_chunk, cores=grid_cores,
        )  # fmt: skip
    if kind == "cache_update":
        new = op.inputs[1]
        cache = op.inputs[0]
        count = users or new.shape[1 if "Paged" in op.name else 2]
        return replace(case, users=count, kv_heads=cache.shape[1], head_dim=cache.shape[3], x=_short(cache))
    if kind == "cache_fill":
        return replace(case, tiles=_tile_count(op.inputs[1]), x=_short(x))
    if kind in ("create_heads", "concat_heads", "rotary"):
        decode = "Decode" in op.name or kind == "rotary" and not x.in_dram and len(x.shape) == 4 and x.shape[2] <= TILE
        per_user = case.tiles if kind == "create_heads" else case.result
        return replace(
            case, prefill=not decode, users=x.shape[-2] if kind == "create_heads" else x.shape[1],
            tiles=per_user if decode else case.tiles, heads=x.shape[2] if decode else x.shape[1],
            head_dim=op.results[-1].shape[-1] if kind == "create_heads" and op.results else x.shape[-1],
        )  # fmt: skip
    if kind in ("topk", "argmax"):
        return replace(case, users=x.shape[-2], cores=grid_cores if "MultiCore" in op.factory else 1)
    return case


def _short(t: Tensor) -> str:
    return DTYPES.get(t.dtype, t.dtype if t.dtype in ("uint32", "int32", "uint16") else "bf16")


def _tile_count(t: Tensor) -> int:
    return prod(whole_tiles(t.shape)) // TILE**2

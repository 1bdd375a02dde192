"""Measured operations of a csv file, as cases of the laws. lab/measured/README.md has the columns.

An absent column counts as empty, a row without an architecture is a Wormhole's. What a row does not say is taken as
most ports have it.
"""

import csv
import re
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Optional, Sequence

from models.demos.qwen25_7b.errors import UserError

from .kinds import AUTO_WIDTH, DTYPES, LONG_RANGE, PHASES, kind_of, name_of
from .laws import TILE, TILE_BYTES, Case, ceil_div

COLLECTIVES = "all_reduce_async all_gather reduce_scatter_async reduce_scatter all_reduce all_to_all".split()
HEADS = {"sdpa_decode", "sdpa_prefill", "rotary", "cache_update", "cache_fill"}  # kinds that have heads, and no shape
NO_SIZE = {"sampling"}


def number(row: dict, column: str) -> float:
    try:
        return float(row.get(column) or 0)
    except ValueError:
        return 0.0


def shapes(row: dict) -> list[tuple[int, ...]]:
    """Of "1x1x32x256 , 1x1x32x256 > 1x1x32x256" or "32x4096": the inputs, and after an arrow the result."""
    parts = [part.strip() for part in re.split("[,>]", row.get("shape") or "")]
    return [tuple(map(int, part.split("x"))) for part in parts if re.fullmatch(r"\d+(x\d+)*", part)]


def _tiles(shape: Sequence[int]) -> int:
    rows, columns = ((1, *shape))[-2:]
    return prod(shape[:-2]) * ceil_div(rows, TILE) * ceil_div(columns, TILE)


def case_of(row: dict) -> Optional[Case]:
    """None: an operation of no kind, or a row that does not say what its kind's law needs."""
    name, arch = name_of(row.get("op") or ""), (row.get("arch") or "wormhole").lower().split("_")[0]
    kind, prefill = kind_of(name), row.get("phase") == "prefill"
    if not kind or arch not in ("wormhole", "blackhole") or row.get("left_out"):
        return None
    x, w, out = (_dtype(row.get(f"{tensor}_dtype")) for tensor in ("in0", "in1", "out"))
    memory = [(row.get(f"mem_{tensor}") or "").lower() for tensor in ("in0", "in1", "out")]
    x_dram, w_dram, out_dram = ("l1" not in place for place in memory)
    count = {field: int(number(row, field)) for field in "heads kv_heads q_chunk workers bytes".split()}
    case = Case(
        kind, arch, name, x=x or "bf16", w=w or x or "bf16", out=out or x or "bf16",
        phases=PHASES.get((row.get("fidelity") or "").lower(), 0), fp32=number(row, "fp32_dest") == 1,
        width=int(number(row, "in0_block_w")) or AUTO_WIDTH * (row.get("program") == "auto"),
        cores=int(number(row, "cores")), x_dram=x_dram, w_dram=w_dram, out_dram=out_dram,
        sharded="l1" in memory[0] and "interleaved" not in memory[0], users=int(number(row, "users_rows")) or 1,
        prefill=prefill, traced=row.get("traced") != "no", head_dim=int(number(row, "head_dim")) or 128,
        batch=int(number(row, "batch")) or 1, passes=int(number(row, "passes")) or 1, fused=number(row, "fused") == 1,
        readers=int(number(row, "readers")) or 1, chips=int(number(row, "chips")) or 1, ring=number(row, "ring") == 1,
        links=int(number(row, "links")) or 1, keys=int(number(row, "keys")), **count,
    )  # fmt: skip
    if kind == "matmul":
        return _matmul(case, row)
    if kind == "collective":
        plain = (op for op in COLLECTIVES if name.startswith(op.replace("_", "")))
        alone = "CCLs/results" in (row.get("source") or "")
        return replace(case, name=next(plain, "all_to_all"), alone=alone) if case.bytes else None
    if kind in HEADS:
        return _heads(case, int(number(row, "tokens"))) if case.heads or case.kv_heads else None
    sizes = shapes(row)
    if not sizes:
        return case if kind in NO_SIZE or kind == "create_heads" and case.heads else None
    return _sized(case, sizes, ">" in row["shape"] and len(sizes) > 1)


def _dtype(name: Optional[str]) -> str:
    short = DTYPES.get((name or "").lower(), (name or "").lower())
    return short if short in TILE_BYTES else ""


def _matmul(case: Case, row: dict) -> Optional[Case]:
    m, k, n = (ceil_div(int(number(row, column)), TILE) for column in "MKN")
    if not m * k * n:
        return None
    program, rows = row.get("program") or "", max(1, m // case.batch)
    kind = "dram_sharded" if "dram" in program else "ring_matmul" if "gather_in0" in program else "wide_matmul"
    if kind == "wide_matmul" and rows <= LONG_RANGE:
        kind = "rows_matmul"
    return replace(case, kind=kind, m=rows, k=k, n=n)


def _heads(case: Case, tokens: int) -> Case:
    """Of attention: tokens of a prompt, or keys before the one of a step."""
    tile_rows = ceil_div(tokens, TILE)
    if case.kind == "sdpa_prefill":
        return replace(case, tiles=tile_rows, keys=tokens)
    heads = case.kv_heads if case.kind == "cache_fill" else case.heads
    return replace(case, tiles=tile_rows * heads * case.head_dim / TILE)


def _sized(case: Case, sizes: list[tuple[int, ...]], has_result: bool) -> Case:
    inputs, result = (sizes[:-1], sizes[-1]) if has_result else (sizes, sizes[0])
    tiles, out = _tiles(inputs[0]), _tiles(result)
    if case.kind == "reshard":  # a partial one moves the smaller of both
        tiles = out = min(tiles, out)
        case = replace(case, out_dram="tointerleaved" in case.name)
    read = (out if case.kind == "slice" else tiles) * TILE_BYTES[case.x] * case.x_dram
    if case.kind == "binary" or len(inputs) > 1 and case.kind != "reshard":  # a partial reshard names its result twice
        read += _tiles(inputs[-1]) * TILE_BYTES[case.w] * case.w_dram
    rows = [prod(shape[:-1]) for shape in (inputs[0], result)]
    return replace(
        case, m=_tiles((*inputs[0][:-1], 1)), rows=min(rows) if case.kind == "tilize" else max(rows),
        spread=case.kind == "binary" and _tiles(inputs[-1]) < tiles, n=ceil_div(inputs[0][-1], TILE), tiles=tiles,
        result=out, read=read, written=out * TILE_BYTES[case.out] * case.out_dram,
    )  # fmt: skip


def read(path: Path) -> list[dict]:
    """UserError: no csv file with the columns op and device_us."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: no csv file: {error}") from None
    if missing := {"op", "device_us"} - set(rows[0] if rows else ()):
        raise UserError(
            f"{path}: needs rows with the columns op and device_us; it has no {' and no '.join(sorted(missing))}"
        )
    return rows

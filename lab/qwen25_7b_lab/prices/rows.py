"""Measured operations of a csv file, as cases of the laws: `perf rows`.

Columns are those of a table of published figures: arch, machine, phase, users_rows, op, M, K, N, shape, in0_dtype,
in1_dtype, out_dtype, fidelity, fp32_dest, program, in0_block_w, cores, mem_in0, mem_in1, mem_out, device_us, traced,
source, comment. An absent column counts as empty. What a row does not say is read from its comment, else taken as most
ports have it; a row without an architecture is a Wormhole's.
"""

import csv
import re
from collections import defaultdict
from dataclasses import replace
from math import exp, log, prod
from pathlib import Path
from statistics import median
from typing import NamedTuple, Optional, Sequence

from models.demos.qwen25_7b.errors import UserError

from .constants import price
from .kinds import AUTO_WIDTH, DTYPES, LONG_RANGE, PHASES, kind_of, name_of
from .laws import TILE, TILE_BYTES, Case, ceil_div

NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()
)
SHORT = 31  # the last key of a run whose position is not told: reports are of a first step after a short prompt
# Kinds that have no price without a shape: some sources give an operation's name alone.
SHAPED = ("norm", "binary", "unary", "reshard", "slice", "transpose", "tilize", "reshape", "pad", "create_heads",
          "concat_heads", "embedding", "topk", "argmax", "collective")  # fmt: skip


# A row that is not one operation, or not that of its name: a slice within a tile is an untilize, a slice and a tilize.
SEVERAL = "doubtful|sum of (several|two)|not on a tile"
HEADS, HEAD_DIM = r"(\d+)/(\d+) ?heads", r"(?:head |_d|x)(64|80|96|128|192|256)\b"
BESIDE, SHARDS = "heads of the source", "cores of the shards"  # columns that read() adds


def number(row: dict, column: str) -> float:
    try:
        return float(row.get(column) or 0)
    except ValueError:
        return 0.0


def _found(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(next(filter(None, found.groups()))) if found else 0


def shapes(text: str) -> list[tuple[int, ...]]:
    """Of "1x1x32x256 , 1x1x32x256 > 1x1x32x256" or "32x4096": the inputs and the result."""
    parts = (re.fullmatch(r"(\d+(?:x\d+)*)(?:_padded)?", part.strip()) for part in re.split(r"[,>]", text))
    return [tuple(map(int, found[1].split("x"))) for found in parts if found]


def _tiles(shape: Sequence[int]) -> int:
    count = 1
    for extent in shape[:-2]:
        count *= extent
    return count * ceil_div(shape[-2] if len(shape) > 1 else 1, TILE) * ceil_div(shape[-1], TILE)


def _chips(machine: str) -> int:
    """That share a model on a machine."""
    names = (("T3K|TG|[Gg]alaxy|GALAXY|LoudBox", 8), (r"x4|x2 \(1x4|tp 4|QB", 4), ("N300|P300", 2))
    return next((chips for names, chips in names if re.search(names, machine)), 1)


def case_of(row: dict) -> Optional[Case]:
    """None: an operation of no kind, or a row that does not say what its kind's law needs."""
    name, comment, shape = name_of(row.get("op") or ""), row.get("comment") or "", row.get("shape") or ""
    kind, arch = kind_of(name), (row.get("arch") or "wormhole").lower().split("_")[0]
    if not kind or arch not in ("wormhole", "blackhole") or re.search(SEVERAL, comment):
        return None
    memory = [(row.get(f"mem_{tensor}") or "").lower() for tensor in ("in0", "in1", "out")]
    dtypes = [_dtype(row.get(f"{tensor}_dtype")) for tensor in ("in0", "in1", "out")]
    prefill = row.get("phase") == "prefill"
    case = Case(
        kind=kind,
        arch=arch,
        name=name,
        x=dtypes[0] or "bf16",
        w=dtypes[1] or dtypes[0] or "bf16",
        out=dtypes[2] or dtypes[0] or "bf16",
        phases=PHASES.get((row.get("fidelity") or "").lower(), 0),
        fp32=number(row, "fp32_dest") == 1,
        width=int(number(row, "in0_block_w")) or AUTO_WIDTH * (row.get("program") == "auto"),
        cores=_found(r"(\d+)-core shards", comment) or int(number(row, SHARDS) or number(row, "cores")),
        x_dram="l1" not in memory[0],
        w_dram="l1" not in memory[1] if memory[1] or prefill else "l1" not in memory[0],
        out_dram="l1" not in memory[2] if memory[2] or prefill else "l1" not in memory[0],
        sharded="l1" in memory[0] and "interleaved" not in memory[0],
        users=1 if "one user" in comment else _found(r"\b(\d+) users?\b|^(\d+)users", f"{shape} {comment}")
        or int(number(row, "users_rows")) or 1,
        prefill=prefill,
        traced=row.get("traced") != "no",
    )  # fmt: skip
    if kind == "matmul":
        return _matmul(case, row, shapes(shape), comment)
    if kind == "collective":
        return _collective(case, row, shapes(shape), shape, comment)
    found = shapes(shape) or _heads_shape(kind, shape, comment)
    if not found and (kind in SHAPED or prefill and not re.search(r"\d(heads|rows|head)", shape)):
        return None
    case = _sized(case, found, shape) if found else case
    return _attention(case, row, shape, comment)


def _heads_shape(kind: str, shape: str, comment: str) -> list[tuple[int, ...]]:
    """Of "256x2heads", of a tile row a head or a user in the comment, and of one row of cos or sin."""
    columns = _found(HEAD_DIM, f"{shape} {comment}") or 128
    if rows := re.fullmatch(r"(\d+)x(\d+)heads", shape):
        return [(int(rows[2]), int(rows[1]), columns)]
    if (
        not shape
        and kind in ("norm", "reshard", "transpose")
        and (heads := _found(r"(\d+) heads|heads of (\d+)", comment))
    ):
        return [(heads, TILE, columns)]
    if kind == "embedding" and "one row" in comment:
        return [(1, columns)]
    return []


def _dtype(name: Optional[str]) -> str:
    short = DTYPES.get((name or "").lower(), (name or "").lower())
    return short if short in TILE_BYTES else ""


def _matmul(case: Case, row: dict, found: list, comment: str) -> Optional[Case]:
    sizes = [int(number(row, column)) for column in "MKN"]
    if not all(sizes):
        return None
    m, k, n = (ceil_div(size, TILE) for size in sizes)
    batch = _found(r"b=(\d+) of", comment) if "joined" not in comment else 0
    if len(found) > 1 and len(found[1]) > 2:
        batch = batch or max(1, _tiles((*found[1][:-2], 1, 1)))
    batch = max(1, batch)
    passes = re.search(r"(\w+) pass(es)?\b", comment)
    program = row.get("program") or ""
    rows = max(1, m // batch)
    kind = "dram_sharded" if "dram" in program else "ring_matmul" if "gather_in0" in program else "wide_matmul"
    if kind == "wide_matmul" and rows <= LONG_RANGE:
        kind = "rows_matmul"
    return replace(
        case,
        kind=kind,
        m=rows,
        k=k,
        n=n,
        batch=batch,
        passes=NUMBERS.index(passes[1]) if passes and passes[1] in NUMBERS else 1,
        fused=bool(re.search("SiLU|GELU", comment)),
        readers=2 if "more than one reader" in comment else 1,
        w_dram="l1" not in (row.get("mem_in1") or ""),
    )


def _collective(case: Case, row: dict, found: list, shape: str, comment: str) -> Optional[Case]:
    op = "_".join(re.findall("all|gather|reduce|scatter|to", case.name)[:3])
    op = next((name for name in ("all_gather", "reduce_scatter", "all_reduce") if op.startswith(name)), "all_to_all")
    if op == "all_reduce" and "async" in case.name:
        op = "all_reduce_async"
    if op == "reduce_scatter" and "async" in case.name and "new ring" not in comment:
        op = "reduce_scatter_async"
    size = _found(r"(\d+)[ _]bytes", shape) or (found and _tiles(found[-1]) * TILE_BYTES[case.x])
    place = f"{row.get('machine') or ''} {comment}"
    chips = _found(r"(\d+) chips", comment) or _chips(place)
    size = size or TILE_BYTES[case.x] * chips * ("top-k" in comment)
    return (
        size
        and replace(
            case,
            name=op,
            bytes=size,
            chips=chips,
            # No line of eight with a link could take as little as the rows of which a line is inferred.
            ring="ring" in place or (chips == 8 or "P150x4" in place) and not re.search("line(?! inferred)", place),
            links=_found(r"(\d+) links?", comment) or (2 if case.arch == "blackhole" else 1),
            workers=_found(r"(\d+) workers", comment),
            alone="CCLs/results" in (row.get("source") or ""),
        )
        or None
    )


def _sized(case: Case, found: list, shape: str) -> Case:
    inputs, result = (found[:-1], found[-1]) if ">" in shape and len(found) > 1 else (found, found[0])
    tiles, out = _tiles(inputs[0]), _tiles(result)
    if case.kind == "reshard":  # a partial one moves the smaller of both
        tiles = out = min(tiles, out)
        case = replace(case, out_dram="tointerleaved" in case.name)
    first = out if case.kind == "slice" else tiles
    read = first * TILE_BYTES[case.x] * case.x_dram
    if case.kind == "binary" or len(inputs) > 1 and case.kind != "reshard":  # a partial reshard names its result twice
        read += _tiles(inputs[-1]) * TILE_BYTES[case.w] * case.w_dram
    return replace(
        case,
        m=_tiles((*inputs[0][:-1], 1)),
        rows=(min if case.kind == "tilize" else max)(prod(shape[:-1]) for shape in (inputs[0], result)),
        spread=case.kind == "binary" and _tiles(inputs[-1]) < tiles,
        n=ceil_div(inputs[0][-1], TILE),
        tiles=tiles,
        result=out,
        read=read,
        written=out * TILE_BYTES[case.out] * case.out_dram,
    )


def _attention(case: Case, row: dict, shape: str, comment: str) -> Case:
    """Heads, keys and rows: of the shape, else of the comment, else as an 8B has them on the machine."""
    text, chips = f"{shape}; {comment}", _chips(f"{row.get('machine') or ''} {comment}")
    beside = row.get(BESIDE) or ""
    both = re.search(HEADS, text) or case.kind != "rotary" and re.search(HEADS, beside)
    heads = int(both[1]) if both else _found(r"(\d+) ?(?:q )?heads?\b", text)
    kv_heads = int(both[2]) if both else _found(r"(\d+) ?kv ?heads", text) or max(1, 8 // chips)
    if case.kind in ("cache_fill", "cache_update") and not both:
        kv_heads = _found(r"x(\d+)heads?", shape) or kv_heads
    if case.kind == "rotary" and not heads:
        heads = case.cores
    if re.search("TG|Galaxy", row.get("machine") or "") and "users" not in shape:
        case = replace(case, users=max(1, case.users // 4))  # a row of eight chips has a fourth of them
    case = replace(
        case,
        heads=heads or (0 if case.kind == "create_heads" else 4 * kv_heads),
        kv_heads=kv_heads,
        head_dim=_found(HEAD_DIM, text) or _found(HEAD_DIM, beside) or 128,
        keys=_found(r"pos(\d+)|position (\d+)", text) or SHORT,
        q_chunk=_found(r"q chunk (\d+)", comment),
    )
    return _rows(case, shape, comment) if case.kind in ("sdpa_prefill", "rotary", "cache_fill") else case


def _rows(case: Case, shape: str, comment: str) -> Case:
    """Of prefill: "2048x8/2heads", or "32x32x8heads" with users first, or users of one tile row in the comment."""
    numbers = [int(number) for number in re.findall(r"\d+", shape.split("heads")[0].split("/")[0].split("_d")[0])]
    users = _found(r"(\d+) users of|batch (\d+)", comment) or 1
    if len(numbers) == 3:
        users, rows = numbers[0], numbers[1]
    elif "rows" in shape:
        rows = numbers[-1]
    else:
        rows = numbers[0] if numbers else case.users
    tile_rows = ceil_div(rows, TILE)
    if case.kind == "sdpa_prefill":
        heads = numbers[-1] if len(numbers) > 1 and "rows" not in shape else case.heads
        return replace(case, batch=users, tiles=tile_rows, keys=rows, heads=heads)
    count = case.kv_heads if case.kind == "cache_fill" else case.heads
    return replace(case, tiles=users * tile_rows * count * case.head_dim / TILE)


class Judged(NamedTuple):
    """A row of a file: its kind, measured microseconds, and the price."""

    kind: str
    op: str
    us: float
    price: Optional[float]


def judge(path: Path) -> list[Judged]:
    """UserError: no csv file with the columns op and device_us."""
    judged = []
    for row in read(path):
        case = case_of(row)
        found = price(case) if case else None
        kind = case.kind if case else kind_of(name_of(row.get("op") or "")) or "other"
        judged.append(Judged(kind, row.get("op") or "", number(row, "device_us"), found and found.us))
    return [each for each in judged if each.us > 0]


def read(path: Path) -> list[dict]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: no csv file: {error}") from None
    missing = {"op", "device_us"} - set(rows[0] if rows else ())
    if missing:
        raise UserError(
            f"{path}: needs rows with the columns op and device_us; it has no {' and no '.join(sorted(missing))}"
        )
    _read_beside(rows)
    return rows


def _read_beside(rows: list[dict]) -> None:
    """Adds what other rows of a source tell.

    - Heads of q and k, where the source has one pair of numbers: in a text, or as the columns of its heads.
    - Columns of a topk, padded to a power of two as ports do: the inferred ones, or those of the widest matmul.
    - Cores of a sharded activation before a DRAM-sharded matmul. Reports print the whole grid for a binary.
    """
    told, columns, widest = defaultdict(set), defaultdict(dict), defaultdict(int)
    inner = {(row.get("source"), number(row, "K")) for row in rows if row.get("program") == "dram_sharded"}
    for row in rows:
        source, text = row.get("source"), f"{row.get('shape')}; {row.get('comment')}"
        if found := re.search(HEADS, text):
            told[source].add(f"{found[0]}_d{_found(HEAD_DIM, text) or 128}")
        kind, found = kind_of(name_of(row["op"] or "")), shapes(row.get("shape") or "")
        widest[source] = max(widest[source], int(number(row, "N")))
        if kind in ("create_heads", "concat_heads") and found:
            columns[source].setdefault(kind, found[0][-1])
    for source, of in columns.items():
        if source not in told and len(of) == 2:
            kv = (of["create_heads"] - of["concat_heads"]) // 2
            told[source].add(f"{of['concat_heads'] // 128}/{kv // 128}heads_d128")
    for row in rows:
        if len(found := told[row.get("source")]) == 1:
            row[BESIDE] = next(iter(found))
        if "silu" in (row["op"] or "") and "l1_width" in (row.get("mem_in0") or "") and number(row, "cores") > 64:
            found = shapes(row.get("shape") or "")
            if found and (row.get("source"), found[0][-1]) in inner:
                row[SHARDS] = max((n for n in (8, 16, 24, 32) if _tiles(found[0]) % n == 0), default=0)
        if kind_of(name_of(row["op"] or "")) == "topk":
            found = shapes(row.get("shape") or "")
            inferred = "inferred" in (row.get("comment") or "")
            if width := widest[row.get("source")] if not found else found[0][-1] * inferred:
                row["shape"] = f"{TILE}x{1 << (width - 1).bit_length()}"


def summary(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Of price / measured: the median error, its ninetieth percentile, and the worst factor."""
    errors = sorted(abs(ratio - 1) for ratio in ratios)
    worst = exp(max(abs(log(ratio)) for ratio in ratios))
    return median(errors), errors[min(len(errors) - 1, int(0.9 * len(errors)))], worst


def table(path: Path) -> str:
    """Of `perf rows`: errors by kind, and in all."""
    groups: dict[str, list[Judged]] = defaultdict(list)
    for each in judge(path):
        groups[each.kind].append(each)
    lines = [
        f"{'kind':14} {'rows':>5} {'priced':>6} {'median':>7} {'90 % in':>8} {'worst':>6} {'price / measured':>17}"
    ]
    for kind, rows in sorted(groups.items()):
        ratios = [each.price / each.us for each in rows if each.price]
        cells = ""
        if ratios:
            middle, ninetieth, worst = summary(ratios)
            cells = f" {middle:7.1%} {ninetieth:8.1%} {worst:6.2f} {median(ratios):17.2f}"
        lines.append(f"{kind:14} {len(rows):5} {len(ratios):6}{cells}")
    priced = [each.price / each.us for rows in groups.values() for each in rows if each.price]
    total = sum(map(len, groups.values()))
    if not priced:
        return "\n".join([*lines, f"priced 0 of {total}, no error"])
    middle, ninetieth, worst = summary(priced)
    last = (
        f"priced {len(priced)} of {total}, median {100 * middle:.1f} %, 90 % within {100 * ninetieth:.1f} %, "
        f"worst factor {worst:.2f}"
    )
    return "\n".join([*lines, last])

"""The reports of golden-mesh compare: 20 lines of text, JSON, and one HTML page."""

import contextlib
import json
import sys
from collections import defaultdict
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Optional

from golden_mesh.compare.comparison import Comparison, Row, WhatIf, comparing
from golden_mesh.compare.reference import FROM_HOST
from golden_mesh.outputs import at_exit, write_whole
from golden_mesh.program import aligned

BELOW = 0.99  # PCC so far, by default
SHOWN = 12  # lines of the program in the text
HEADER = ("line", "operation", "result", "kernel", "pcc", "error", "gain", "so far", "error")


def text(comparison: Comparison, below: float, shown: int = SHOWN) -> str:
    """The worst operations by line of the program, and the first one at which "so far" falls below the bound."""
    rows = comparison.rows
    if not rows:
        return "compare: no device operation with floating-point tensors ran"
    calls = defaultdict(list)
    for row in rows:
        calls[_line(row), row.op].append(row)
    badness = lambda row: row.own.badness
    worst = sorted((max(each, key=badness) for each in calls.values()), key=badness, reverse=True)
    what_if = comparison.what_if
    table = [(*HEADER, what_if.text) if what_if else HEADER]
    for row in worst[:shown]:
        same = calls[_line(row), row.op]
        times = f" ({same.index(row) + 1} of {len(same)})" if len(same) > 1 else ""
        result = f"{list(row.slot.shape)} {row.slot.dtype.name}"
        trial = [f"{row.what_if.relative:.1e}" if row.what_if else ""] * bool(what_if)
        table.append((f"{_line(row)}{times}", row.op, result, kernel(row), *figures(row), *trial))
    left = f" Worst {shown} of {len(worst)} lines:" if len(worst) > shown else " By line:"
    lines = [
        f"compare: {len(rows)} operations against float32. {_first_below(rows, below)}",
        *_first_wild(rows),
        *comparison.bracket(),
        f"Worst first; pcc, error and gain of the operation alone, then of the program so far.{left}",
        *aligned(table),
        _memory(rows),
        *(f"not compared: {op}: {why}" for op, why in comparison.without.items()),
    ]
    return "\n".join(lines)


def _line(row: Row) -> str:
    """The row's line. A line that makes host tensors is often a helper's: its caller is shown, too."""
    callers = row.site.places[:2] if row.op == FROM_HOST else ()
    return " < ".join((f"{row.site}", *callers))


def _first_below(rows: list[Row], below: float) -> str:
    first = next((row for row in rows if row.far.pcc < below), None)
    if first is None:
        lowest = min(rows, key=lambda row: row.far.pcc)
        return f"None falls below PCC {below}; the lowest is {lowest.far.pcc:.6f} at {lowest.site} {lowest.op}."
    return (
        f"First below PCC {below}: {first.site} {first.op}, operation {first.number}: "
        f"{first.far.pcc:.6f} so far, {first.own.pcc:.6f} alone."
    )


def _first_wild(rows: list[Row]) -> list[str]:
    """The first operation that makes infinities or NaN of finite inputs. Masks of -inf come from elsewhere."""
    first = next((row for row in rows if row.makes_wild), None)
    if first is None:
        return []
    count, where = first.own.wild, f"{first.site} {first.op}, operation {first.number}"
    return [f"First infinite or NaN of finite inputs: {where}: {count:,} values."]


def _memory(rows: list[Row]) -> str:
    """The high-water marks of the live buffers."""
    marks = []
    for name, unit, used in (("L1", "a core", lambda row: row.site.l1), ("DRAM", "a bank", lambda row: row.site.dram)):
        row = max(rows, key=used)
        marks.append(f"{used(row):,} bytes {unit} in {name} ({row.site} {row.op})")
    return f"Most in live buffers: {', '.join(marks)}."


def kernel(row: Row) -> str:
    """Fidelity and dest of the compute kernel, as LoFi bf16."""
    if row.kernel is None:
        return ""
    fidelity = ("LoFi", "HiFi2", "HiFi3", "HiFi4")[row.kernel.phases - 1]
    return f"{fidelity} {'fp32' if row.kernel.wide else 'bf16'}" + " approx" * row.kernel.approximate


def figures(row: Row) -> tuple[str, ...]:
    own, far = row.own, row.far
    error = f"{own.nonfinite} not finite" if own.nonfinite else f"{own.relative:.1e}"
    if own.channels > 2 * own.relative:  # small channels beside large ones
        error += f", {own.channels:.1e} by channel"
    return f"{own.pcc:.6f}", error, f"{own.gain:.4f}", f"{far.pcc:.6f}", f"{far.relative:.1e}"


def record(row: Row) -> dict:
    """The row for JSON."""
    return {
        "number": row.number, "line": f"{row.site}", "callers": row.site.places, "op": row.op,
        "shape": list(row.slot.shape), "dtype": row.slot.dtype.name, "layout": row.site.layout,
        "memory": row.slot.buffer_type.name, "kernel": kernel(row),
        "l1_a_core": row.site.l1, "dram_a_bank": row.site.dram, "this_op": asdict(row.own),
        "so_far": asdict(row.far), "equals": row.equals, "what_if": row.what_if and asdict(row.what_if),
    }  # fmt: skip


def write_html(comparison: Comparison, path: Path, title: str) -> None:
    """Write one page without other files: a plot of the errors along the program, and each operation's row."""
    rows, what_if = [record(row) for row in comparison.rows], comparison.what_if and comparison.what_if.text
    what = {"title": title, "what_if": what_if, "bracket": comparison.bracket(), "rows": rows}
    page = (files("golden_mesh") / "compare/compare.html").read_text()
    page = page.replace("/*data*/", json.dumps(what).replace("</", "<\\/"))
    write_whole(path, lambda part: part.write_text(page))


def write_json(comparison: Comparison, path: Path) -> None:
    what = {"bracket": comparison.bracket(), "operations": [record(row) for row in comparison.rows]}
    write_whole(path, lambda part: part.write_text(json.dumps(what, indent=1)))


def start(below: float, json_file: Optional[str], html_file: Optional[str], what_if: Optional[str]) -> None:
    """Compare this process's operations and print the report when it ends."""
    program = contextlib.ExitStack()
    comparison = program.enter_context(comparing())
    comparison.what_if = WhatIf(what_if) if what_if else None

    def show() -> None:
        print(text(comparison, below))
        if json_file:
            write_json(comparison, Path(json_file))
        if html_file:
            write_html(comparison, Path(html_file), " ".join(sys.argv))
        program.close()

    at_exit(show)

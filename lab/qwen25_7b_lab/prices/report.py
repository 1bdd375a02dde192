"""The text of `perf run`."""

from dataclasses import dataclass
from typing import Optional, Sequence

from .laws import GAP
from .op_costs import DRAM, is_collective
from .prices import HEADER, Prices, Row, cells, megabytes, ranged, total
from .published import STEPS, span

DIGITS = 4  # of a time in ms: 0.1 us


@dataclass(frozen=True)
class Section(Prices):
    """A captured part of a program."""

    name: str
    runs: int
    chips: int  # of the mesh
    rows: tuple[Row, ...]

    def unmeasured(self) -> list[str]:
        """Operations between chips for which there is no measured time."""
        apart = (row for row in self.rows if is_collective(row.op) and not row.work.collective)
        return sorted({row.op.call for row in apart}) if self.chips > 1 else []


def report(sections: Sequence[Section], *, links: int, position: Optional[int]) -> str:
    """All parts, and below them the rates and their sources."""
    blocks = [_section(section, span()) for section in sections]
    rows = [row for section in sections for row in section.rows]
    if rows:
        blocks.append(_sources(links))
    if any("Sdpa" in row.op.name for row in rows):
        caches = "as full" if position is None else f"with {position} tokens before the new one"
        blocks[-1] += f"\nCaches of decode attention count {caches}."
    return "\n\n".join(blocks)


def _section(section: Section, between: tuple[float, float]) -> str:
    if not section.rows:
        return f"{section.name}: no device operation"
    title = f"{section.name}, {section.chips} chip{'s' * (section.chips > 1)}"
    runs = f", {section.runs} runs" if section.runs > 1 else ""
    table = aligned((HEADER, *cells(section.rows, DIGITS), total(section.rows, DIGITS)))
    lines = [f"{title}{runs} (modeled, not measured)", "", *table, ""]
    shown = ((part, f"{1e3 * s:.{DIGITS}f}") for part, s in section.parts().items())
    parts = ", ".join(f"{part} {ms}" for part, ms in shown if float(ms))
    sent = f", and {megabytes(section.sent)} over its busiest link" if section.sent else ""
    lines.append(f"A chip moves {megabytes(section.dram_bytes)} from and to DRAM{sent}.")
    lines.append(f"ms by part: {parts}.")
    what = "A run" if section.runs > 1 else "All of it"
    lines.append(f"{what} takes {ranged(1e3 * section.seconds / section.runs, between)} ms.")
    if section.unpriced():
        lines.append(f"Without a measured row: {', '.join(section.unpriced())}.")
    if section.uncertain():
        lines.append(section.uncertain())
    if section.unmeasured():
        lines.append(f"Without a price of the links: {', '.join(section.unmeasured())}.")
    return "\n".join(lines)


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width. Numbers, from the third column on to the last but one, are at the right."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    right = range(2, len(widths) - 1)
    return [
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width) for i, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    ]


def _sources(links: int) -> str:
    """What the prices are from."""
    low, high = span()
    return f"""\
Modeled, not measured (lab/prices.md). "Price from" has the published rows of the kind, and within what 90 % of rows lie
when the fit has not seen their source. A gap of {GAP} us follows each kernel. Links between chips: {links}. "At full
rates" is the longest of DRAM ({DRAM / 1e9:.0f} GB/s), the matrix engines' peak and the links'. Without a row an
operation counts twice its DRAM time and 2.5 us. The host is not counted. Ranges: {len(STEPS)} published steps
took {low:.2f} to {high:.2f} times their modeled times.
"""

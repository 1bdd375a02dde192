"""`perf rows`: measured operations beside their prices, and the errors by kind."""

from collections import defaultdict
from math import exp, log
from pathlib import Path
from statistics import median
from typing import NamedTuple, Optional, Sequence

from .constants import price
from .kinds import kind_of, name_of
from .rows import case_of, number, read


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

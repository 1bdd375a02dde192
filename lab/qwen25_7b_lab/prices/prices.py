"""Priced operations, their sums, and the rows of their table."""

from collections import Counter
from dataclasses import dataclass
from typing import Optional, Sequence

from .device_ops import Op, Tensor
from .op_cases import case_of
from .op_costs import MATMULS, Bound, Work, bound, is_collective, work_of

LARGE = 0.5  # of the error in the column "price from"
HEADER = ("op", "result", "launches", "ms", "at full rates", "price from")


@dataclass(frozen=True)
class Row:
    """Equal operations. Seconds are of all of them."""

    op: Op
    count: int
    work: Work
    bound: Bound

    @classmethod
    def make(
        cls,
        op: Op,
        count: int,
        *,
        links: int,
        chips: int,
        grid_cores: int,
        users: Optional[int] = None,
        position: Optional[int] = None,
        tokens: int = 1,
        arch: str = "wormhole",
    ) -> "Row":
        """links: as in op_costs.bound. arch: of the chip, as the laws name it. The others: as in op_costs.work_of."""
        here = dict(chips=chips, grid_cores=grid_cores, users=users, position=position, tokens=tokens)
        work = work_of(op, **here)
        return cls(op, count, work, bound(op, work, links, case_of(op, work, links=links, arch=arch, **here), arch))

    @property
    def seconds(self) -> float:
        return self.count * self.bound.seconds

    @property
    def floor(self) -> float:
        return self.count * self.bound.floor

    @property
    def dram_bytes(self) -> int:
        """Bytes that a chip moves from and to DRAM, padding of the banks included."""
        return self.count * (self.work.streamed + self.work.scattered)


class Prices:
    """Sums of rows. A subclass has them as `rows`."""

    rows: Sequence[Row]

    @property
    def seconds(self) -> float:
        return sum(row.seconds for row in self.rows)

    @property
    def launches(self) -> int:
        return sum(row.count for row in self.rows)

    @property
    def dram_bytes(self) -> int:
        """Of a chip."""
        return sum(row.dram_bytes for row in self.rows)

    @property
    def sent(self) -> int:
        """Bytes through the busiest ethernet link of a chip in one direction."""
        return sum(row.count * row.work.sent for row in self.rows)

    def parts(self) -> dict[str, float]:
        """Seconds by part; their sum is `seconds`."""
        spent = Counter()
        for row in self.rows:
            spent[part(row)] += row.count * row.bound.kernel
            spent["gaps"] += row.count * row.bound.gap
        return dict(spent)

    def unpriced(self) -> list[str]:
        """Operations without a measured row: they count their bytes and a start."""
        return sorted({row.op.call or row.op.name for row in self.rows if not row.bound.price})

    def uncertain(self) -> str:
        """Name the operations of kinds that miss a tenth of unseen rows by more than LARGE, and their share of time."""
        rows = [row for row in self.rows if row.bound.price and row.bound.price.error > LARGE]
        names = ", ".join(sorted({row.op.call or row.op.name for row in rows}))
        share = sum(row.seconds for row in rows) / self.seconds if rows else 0.0
        return names and f"{share:.0%} of the time is priced with an error above {LARGE:.0%}: {names}."


def part(row: Row) -> str:
    """What a step waits for in an operation."""
    if is_collective(row.op):
        return "collectives"
    if row.op.name.startswith(MATMULS):
        return "weights" if row.work.streamed else "other matmuls"
    if "SDPA" in row.op.name.upper() or "Cache" in row.op.name:
        return "attention and cache"
    return "small operations"


def cells(rows: Sequence[Row], digits: int) -> list[tuple[str, ...]]:
    """Lines of HEADER's columns: equal operations in one line, the longest first. digits: of a time in ms."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault((named(row.op), result(row.op), row.op.dram_sharded), []).append(row)
    lines = []
    for (name, of, _), same in sorted(groups.items(), key=lambda g: -sum(r.seconds for r in g[1])):
        lines.append((name, of, *_sums(same, digits), same[0].bound.source))
    return lines


def total(rows: Sequence[Row], digits: int) -> tuple[str, ...]:
    """The last line of the table."""
    return ("total", "", *_sums(rows, digits), "")


def _sums(rows: Sequence[Row], digits: int) -> tuple[str, ...]:
    """Launches, ms, and ms at the chip's full rates. Less than the last digit is empty."""
    ms, floor = (1e3 * sum(seconds) for seconds in zip(*((r.seconds, r.floor) for r in rows)))
    return (
        f"{sum(r.count for r in rows)}",
        f"{ms:.{digits}f}",
        f"{floor:.{digits}f}" if floor >= 0.5 * 10**-digits else "",
    )


def label(op: Op) -> str:
    """The ttnn function, and the device operation where it has another name."""
    same = op.call.replace("_", "") in op.name.lower()
    return op.call if op.call and same else f"{op.call} ({op.name})" if op.call else op.name


def named(op: Op) -> str:
    """The label; for a matmul with the shape of its weight, since a layer has several."""
    weight = f" x {shape(op.inputs[1])}" if "Matmul" in op.name else ""
    return label(op) + weight


def result(op: Op) -> str:
    return shape(op.result) if op.result else "in place"


def shape(t: Tensor) -> str:
    """The shape without leading ones."""
    extents = list(t.shape)
    while len(extents) > 2 and extents[0] == 1:
        extents.pop(0)
    return str(extents)


def ranged(value: float, between: Sequence[float]) -> str:
    """A modeled figure in two digits, and its range: "19, 15 to 33". between: shares of the value (published.span)."""
    low, high = sorted(value * share for share in between)
    return f"{two_digits(value)}, {two_digits(low)} to {two_digits(high)}"


def two_digits(value: float) -> str:
    """The value in two significant digits, without an exponent: 131 is 130, and 0.0509 is 0.051."""
    return f"{value:.2g}" if value < 99.5 else f"{float(f'{value:.2g}'):,.0f}"


def megabytes(count: float) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 5e4 else f"{count / 1e3:.1f} kB"

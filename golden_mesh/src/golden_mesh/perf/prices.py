"""Priced operations, their sums, and the rows of their table."""

from collections import Counter
from dataclasses import dataclass
from typing import Optional, Sequence

from golden_mesh.perf.device_ops import Op, Tensor
from golden_mesh.perf.op_costs import Bound, Rates, Work, bound, work_of

# Longer than the model says: it counts their bytes and a launch.
SEARCHES = ("TopK", "ArgMax", "Sampling", "Sort")

HEADER = ("op", "result", "launches", "ms", "DRAM ms", "compute ms", "ethernet ms", "waits for")


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
        rates: Rates,
        *,
        links: int,
        chips: int,
        grid_cores: int,
        users: Optional[int] = None,
        position: Optional[int] = None,
        tokens: int = 1,
    ) -> "Row":
        """links: as in op_costs.bound. The others: as in op_costs.work_of."""
        here = dict(chips=chips, grid_cores=grid_cores, users=users, position=position)
        work = work_of(op, tokens=tokens, **here)
        return cls(op, count, work, bound(work, rates, links))

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
            b = row.bound
            stream = "streaming weights" if row.work.streamed else "interleaved DRAM (cache)"
            spent["launches"] += row.count * b.launch
            if b.exposed_read:
                spent[stream] += row.count * b.dram
                spent["compute"] += row.count * b.compute
            elif b.busy == b.dram:
                spent[stream] += row.count * b.dram
            else:
                kind = "compute" if b.busy == b.compute else "ethernet"
                spent[kind] += row.count * b.busy
        return dict(spent)

    def searches(self) -> list[str]:
        """Operations that take longer than the model says."""
        return sorted({row.op.call for row in self.rows if row.op.name.startswith(SEARCHES)})


def cells(rows: Sequence[Row], digits: int) -> list[tuple[str, ...]]:
    """Lines of HEADER's columns: equal operations in one line, the longest first. digits: of a time in ms."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault((named(row.op), result(row.op), row.op.dram_sharded), []).append(row)
    lines = []
    for (name, of, _), same in sorted(groups.items(), key=lambda g: -sum(r.seconds for r in g[1])):
        waits = Counter()
        for r in same:
            waits[r.bound.name] += r.seconds
        lines.append((name, of, *_sums(same, digits), waits.most_common(1)[0][0]))
    return lines


def total(rows: Sequence[Row], digits: int) -> tuple[str, ...]:
    """The last line of the table."""
    return ("total", "", *_sums(rows, digits), "")


def _sums(rows: Sequence[Row], digits: int) -> tuple[str, ...]:
    """Launches, ms, and ms by part. A part below the last digit is empty."""
    spent = [1e3 * sum(r.count * getattr(r.bound, part) for r in rows) for part in ("dram", "compute", "ethernet")]
    parts = (f"{ms:.{digits}f}" if ms >= 0.5 * 10**-digits else "" for ms in spent)
    ms = 1e3 * sum(r.seconds for r in rows)
    return f"{sum(r.count for r in rows)}", f"{ms:.{digits}f}", *parts


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
    """A modeled figure in two digits, and its range: "19, 15 to 33". between: shares of the value (Calibration.range)."""
    low, high = sorted(value * share for share in between)
    return f"{two_digits(value)}, {two_digits(low)} to {two_digits(high)}"


def two_digits(value: float) -> str:
    """The value in two significant digits, without an exponent: 131 is 130, and 0.0509 is 0.051."""
    return f"{value:.2g}" if value < 99.5 else f"{float(f'{value:.2g}'):,.0f}"


def megabytes(count: float) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 5e4 else f"{count / 1e3:.1f} kB"

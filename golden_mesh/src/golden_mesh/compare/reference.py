"""Which values of a torch module the operations of a ttnn program give (golden-mesh compare).

Values are compared by themselves, as sets of numbers: a ttnn program has them in other shapes, orders, paddings and
shards. Zeros do not count, since padding is zeros. Nor do the large numbers of masks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Iterable, Iterator, NamedTuple, Optional

import torch

from golden_mesh.compare.fingerprints import FEWEST, FEWEST_ROWS, Fingerprint, RowIndex, Rows
from golden_mesh.compare.torch_values import ADDS, Value

FROM_HOST = "ttnn.from_torch"
SUSPECTS = 3  # rows that are named
LISTED = 8  # outputs that are named
_FAR = float("inf")


class Bracket(NamedTuple):
    """Where the program leaves the reference. Rows are those of compare.Comparison."""

    last_equal: Optional[object]  # the last row that is a value of the reference, before the suspects
    missing: Optional[Value]  # the first output of a module that no row gives
    suspects: list  # the first rows that are no values of the reference
    unproven: list[Value]  # outputs that no row gives, but a sum of which is given


@dataclass
class Reference:
    """The values of the modules in `reference` blocks, and which of them the rows of compare.Comparison give."""

    values: list[Value] = field(default_factory=list)
    tokens: int = 0  # a batch entry, of the last block's input
    given: dict[int, dict[int, float]] = field(default_factory=dict)  # row -> the values that it gives, distances
    covered: dict[int, torch.Tensor] = field(default_factory=dict)  # value -> the distance of each of its rows
    results: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)  # of a row -> norm, distance
    _indexed: tuple[int, list[RowIndex]] = (0, [])

    def find(self, tensors: Iterable[torch.Tensor]) -> dict[int, float]:
        """The numbers of the values that one of the tensors equals, and the distance of each."""
        for tensor in tensors:
            mine = Fingerprint(tensor)
            if mine.count < FEWEST:
                continue
            distances = ((i, mine.distance(value.fingerprint)) for i, value in enumerate(self.values))
            found = {i: distance for i, distance in distances if distance <= 1}
            if found:
                return found
        return {}

    def find_part(self, tensors: Iterable[torch.Tensor]) -> list[tuple[int, slice, float]]:
        """The numbers of the values with rows (of tokens) that are one of the tensors, which rows, and the distance."""
        indexes = self._row_indexes()
        for tensor in tensors if indexes else ():
            if tensor.dim() < 2 or tensor.shape[-2] < FEWEST_ROWS:
                continue
            part = Rows(tensor[None], -2)
            found = [each for index in indexes for each in index.find(part)]
            if found:
                return found
        return []

    def _row_indexes(self) -> list[RowIndex]:
        """The values that have rows, those of equal numbers of rows together."""
        if len(self.values) != self._indexed[0]:
            by_rows: dict[int, dict[int, Rows]] = {}
            for number, value in enumerate(self.values):
                if value.rows is not None:
                    by_rows.setdefault(len(value.rows.sums), {})[number] = value.rows
            self._indexed = len(self.values), [RowIndex(rows) for rows in by_rows.values()]
        return self._indexed[1]

    def look_up(self, row, results: list[list[torch.Tensor]]) -> None:
        """Note which values the row gives, whole or in part. results: the float32 stream of each, by chip."""
        names, given = [], self.given.setdefault(row.number, {})
        for chips in results:
            distinct = list({id(value): value for value in chips}.values())
            found = self.find(_readings(distinct))
            parts = [] if found else self.find_part(_readings(distinct))
            found, part = found or self._cover(parts), {number: rows for number, rows, _ in parts}
            for number, distance in found.items():
                given[number] = min(distance, given.get(number, distance))
            nearest = min((*found.values(), *(distance for *_, distance in parts)), default=_FAR)
            norm = Fingerprint(next(_readings(distinct))).x.norm().item()
            self.results[row.number, len(names)] = norm, nearest
            best = min((*found, *part), key=lambda number: not self.values[number].is_output, default=None)
            names.append("" if best is None else self.values[best].name)
            if best in part:
                names[-1] += f" rows {part[best].start} to {part[best].stop - 1}"
        row.found = tuple(map(bool, names))
        row.equals = ", ".join(dict.fromkeys(filter(None, names)))

    def _cover(self, parts: list[tuple[int, slice, float]]) -> dict[int, float]:
        """Note the parts of the values as given. The values that are whole now, and their distances."""
        whole = {}
        for number, rows, distance in parts:
            count = len(self.values[number].rows.sums)
            covered = self.covered.setdefault(number, torch.full((count,), _FAR))
            covered[rows] = covered[rows].clamp(max=distance)
            if covered.isfinite().all():
                whole[number] = covered.max().item()
        return whole

    def bracket(self, rows: list) -> Optional[Bracket]:
        """None: no row gives a value of the reference, or no value is missing."""
        found: dict[int, float] = {}  # value -> from the nearest row
        for row in rows:
            for number, distance in self.given.get(row.number, {}).items():
                found[number] = min(distance, found.get(number, distance))
        distances, anchored = self._spread(found), set()
        for number, value in enumerate(self.values):
            if number in found or value.parents & anchored:
                anchored.add(number)
        left = [n for n, v in enumerate(self.values) if v.is_output and distances[n] > 1]
        missing = next((self.values[n] for n in left if n in anchored), None)
        if missing is None or not found:
            return None
        last, suspects = self._suspects(rows)
        return Bracket(last, missing, suspects, [self.values[n] for n in left if distances[n] < _FAR])

    def _repeated(self, rows: list) -> list:
        """The rows of runs that a later run repeats and that give values which the later one does not.

        A run is rows that are connected by what they read. A later run repeats it if it has more than half of its
        lines, operations and tensors of the host.
        """
        on_host = {row.number for row in rows if row.op == FROM_HOST}
        runs: dict[int, list] = {}  # row -> the rows of its run
        for row in rows:
            if row.number in on_host:
                continue
            run = runs[row.number] = [row]
            for number in {number for number, _ in row.inputs} - on_host:
                other = runs.get(number, run)
                if other is not run:
                    run += other
                    runs.update((each.number, run) for each in other)
        key = lambda row: (row.site[:2], row.op, row.slot.shape, *sorted({n for n, _ in row.inputs} & on_host))  # noqa: E731
        last = {key(row): runs[row.number] for row in rows if row.number not in on_host}
        values = lambda run: {number for row in run for number in self.given.get(row.number, ())}  # noqa: E731
        repeated = []
        for run in {id(run): run for run in runs.values()}.values():
            later = [last[key(row)] for row in run]
            again, count = Counter(map(id, later)).most_common(1)[0]
            again = next(other for other in later if id(other) == again)
            if again is not run and 2 * count > len(run) and values(again) < values(run):
                repeated += run
        return repeated

    def _spread(self, found: dict[int, float]) -> list[float]:
        """The distance of each value, in tolerances, as far as given values show it. Infinite: nothing shows it.

        A sum that is equal within a tolerance shows a part of a tenth of its norm within ten tolerances.
        """
        distances = [found.get(number, _FAR) for number in range(len(self.values))]
        for number in reversed(range(len(self.values))):  # children come after their parents
            value = self.values[number]
            for parent in value.parents:
                hidden = _hides(value.fingerprint.norm, self.values[parent].fingerprint.norm) if value.adds else 1.0
                distances[parent] = min(distances[parent], distances[number] * hidden)
        return distances

    def _suspects(self, rows: list) -> tuple[Optional[object], list]:
        """The last equal row before the suspects, and these.

        A result is good if it is a value of the reference, or if a good result shows it (as in _spread). A row with
        other results is a suspect if all its inputs are good. So is the row before, if it is itself no value and there
        is room. Rows before the first equal one (a prompt, where the reference has a step alone) count as good. Rows of
        host tensors alone (tables, masks) and results that no row reads are suspects only if there are no others.
        """
        equal = {(row.number, i) for row in rows for i, found in enumerate(row.found) if found}
        sources = {(row.number, 0) for row in rows if row.op == FROM_HOST}
        first_equal = min((number for number, _ in equal), default=1)
        earlier = {(r.number, i) for r in rows[: first_equal - 1] for i in range(len(r.found))}
        far = {each: distance for each, (_, distance) in self.results.items()} | dict.fromkeys(sources | earlier, 0.0)
        read: set[tuple[int, int]] = set()
        suspects = set()
        for row in reversed(rows):
            results = {(row.number, i) for i in range(len(row.found))}
            nearest = min(results, key=lambda result: far.get(result, _FAR))
            for each in row.inputs if far.get(nearest, _FAR) <= 1 else ():
                adds = row.op.rpartition(".")[2] in ADDS and {nearest, each} <= self.results.keys()
                hidden = _hides(self.results[nearest][0], self.results[each][0]) if adds else 1.0
                far[each] = min(far.get(each, _FAR), far[nearest] * hidden)
            good = {result for result in results if far.get(result, _FAR) <= 1}
            if not (results <= good or (row.in_place and not results & read)):
                suspects.add(row.number)
            read |= row.inputs
        good = {result for result, distance in far.items() if distance <= 1}
        first = [r for r in rows if r.number in suspects and good.issuperset(r.inputs)]
        first = [r for r in first if r.inputs - (sources - equal)] or first
        first = [r for r in first if any((r.number, i) in read for i in range(len(r.found)))] or first
        first = first[:SUSPECTS]
        ahead = [r for r in rows if all(r.found) and (not first or r.number < first[0].number)]
        before = {n for row in first for n, i in row.inputs - equal - sources}
        named = {row.number for row in first}
        named.update(sorted(before - named, reverse=True)[: SUSPECTS - len(first)])
        return ahead[-1] if ahead else None, [row for row in rows if row.number in named]

    def lines(self, rows: list) -> list[str]:
        """The bracket as text."""
        if not self.values:
            return []
        earlier = {row.number for row in self._repeated(rows)}
        rows = [row for row in rows if row.number not in earlier]
        found, nothing = self.bracket(rows), []
        if not any(any(row.found) for row in rows if row.op != FROM_HOST):
            nothing = ["reference: no operation gives a value of it: the inputs or the weights may differ"]
            if earlier:
                nothing = ["reference: an earlier run gives values of it, the last one of the same lines none"]
        if found is None and nothing:
            return nothing + self._first_of_a_shape(rows)
        if found is None:
            every = "reference: every output of its modules is given, or something computed of it"
            return [every, *self._not_judged(rows)]
        last, missing, suspects, unproven = found
        sum_is = " (its sum is given)" if missing in unproven else ""
        name = f"{missing.name} {list(missing.shape)}{sum_is}"
        lines = nothing + [f"reference: first output that no operation gives: {name}"]
        if last is not None:
            lines.append(f"  last equal: {_line(last)} {last.op} = {last.equals}")
        for row in suspects:
            wrong = [i + 1 for i, found in enumerate(row.found) if not found]
            which = f", results {wrong} of {len(row.found)}" if len(row.found) > 1 else ""
            lines.append(f"  first unequal: {_line(row)} {row.op} {list(row.slot.shape)}{which}")
        others = [value.name for value in unproven if value is not missing]
        if others:
            more = f" and {len(others) - LISTED} more" if len(others) > LISTED else ""
            lines.append(f"  outputs that no operation gives, their sum is: {', '.join(others[:LISTED])}{more}")
        return lines

    def _not_judged(self, rows: list) -> list[str]:
        """A line about the operations after the last value of the reference: nothing says what they should give."""
        judged = max(i for i, row in enumerate(rows) if any(row.found))
        later = [row for row in rows[judged + 1 :] if row.op != FROM_HOST]
        if not later:
            return []
        return [
            f"  after its last value, and not judged: {len(later)} operation{'s' * (len(later) > 1)}, the first "
            f"{_line(later[0])} {later[0].op}"
        ]

    def _first_of_a_shape(self, rows: list) -> list[str]:
        """The first operation whose result has the shape of a module's output, as a line of text."""
        outputs = [value for value in self.values if value.is_output]
        for row in rows:
            for value in outputs if row.op != FROM_HOST else ():
                if _without_ones(value.shape) == _without_ones(row.slot.shape):
                    what = f"{value.name} {list(value.shape)}"
                    return [f"  first of a value's shape: {_line(row)} {row.op}, as {what}"]
        return []


def _hides(whole: float, part: float) -> float:
    """How many times further from the reference a part of a sum may be than the sum. Both are norms."""
    return max(whole / part, 1.0) if part else _FAR


def _without_ones(shape) -> list[int]:
    return [extent for extent in shape if extent > 1]


def _line(row) -> str:
    """The row's line. A helper that many lines call is named with its caller."""
    return " < ".join((f"{row.site}", *row.site.places[:1]))


def _readings(chips: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The tensors that a mesh's shards may stand for: one, all side by side, or their sum."""
    if len(chips) == 1:
        yield chips[0]
        return
    if len({chip.shape for chip in chips}) > 1:
        yield torch.cat([chip.flatten() for chip in chips])
        return
    yield torch.cat(chips, -1)
    yield sum(chips[1:], start=chips[0])

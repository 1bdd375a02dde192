"""The values of a torch module, and which of them the operations of a ttnn program give (golden-mesh compare).

Values are compared by themselves, as sets of numbers: a ttnn program has them in other shapes, orders, paddings and
shards. Zeros do not count, since padding is zeros. Nor do the large numbers of masks.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Iterable, Iterator, NamedTuple, Optional

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

TOLERANCE = 0.01  # relative; of a bfloat16 reference, or weights that were rounded before the program got them
COUNTS = 0.005  # relative difference of the numbers of values: a bfloat16 sum is zero more often
FROM_HOST = "ttnn.from_torch"
MASK = 1e9  # larger numbers are masks
FEWEST = 64  # values that tell a tensor from another
SUSPECTS = 3  # rows that are named
EXTREMES, QUANTILES = 16, 64  # samples of the sorted values: from both ends, and between


class Fingerprint:
    """What a set of numbers is recognized by. Samples are sorted out when they are needed."""

    def __init__(self, x: torch.Tensor):
        x = x.detach().flatten()
        self.x: Optional[torch.Tensor] = x[(x != 0) & (x.abs() < MASK)].float()
        self.count = len(self.x)

    def keep(self) -> "Fingerprint":
        """Compute everything, and let go of the tensor."""
        if self.count >= FEWEST:
            self.samples, self.sums = self.samples, self.sums
        self.x = None
        return self

    def __getattr__(self, name: str):
        """`sums` and `samples`, computed once."""
        compute = {"sums": self._sums, "samples": self._samples}.get(name)
        if compute is None:
            raise AttributeError(name)
        value = compute()
        setattr(self, name, value)
        return value

    def _sums(self) -> torch.Tensor:
        """Of x, |x| and x|x|, each divided by what independent noise adds to it."""
        x = self.x.double()
        parts = [(each.sum(), each.square().sum().sqrt()) for each in (x, x.abs(), x * x.abs())]
        return torch.tensor([[total, noise] for total, noise in parts])

    def _samples(self) -> torch.Tensor:
        ordered = self.x.sort().values
        at = torch.linspace(0, self.count - 1, QUANTILES + 2).long()[1:-1]
        return torch.cat((ordered[:EXTREMES], ordered[-EXTREMES:], ordered[at]))

    def equals(self, other: "Fingerprint") -> bool:
        """Whether these are the other's numbers, up to rounding."""
        if abs(self.count - other.count) > COUNTS * other.count:
            return False
        (mine, _), (theirs, noise) = self.sums.T, other.sums.T
        if ((mine - theirs).abs() > TOLERANCE * (theirs.abs() / 100 + noise)).any():
            return False
        mine, theirs = (f.samples.split([2 * EXTREMES, QUANTILES]) for f in (self, other))
        ends = ((mine[0] - theirs[0]) / theirs[0]).square().mean().sqrt()
        between = (mine[1] - theirs[1]).norm() / theirs[1].norm()
        return bool(ends <= TOLERANCE and between <= 2 * TOLERANCE)


@dataclass
class Value:
    """A tensor of the reference."""

    name: str  # of the module that returns it; else of the module and its function
    shape: tuple[int, ...]
    fingerprint: Fingerprint
    parents: frozenset[int]  # numbers of the values that it was computed of
    is_output: bool = False  # of a module


class Bracket(NamedTuple):
    """Where the program leaves the reference. Rows are those of compare.Comparison."""

    last_equal: Optional[object]  # the last row that is a value of the reference, before the suspects
    missing: Optional[Value]  # the first output of a module that no row gives
    suspects: list  # the first rows that are no values of the reference


@dataclass
class Reference:
    """The values of the modules that ran in `reference` blocks."""

    values: list[Value] = field(default_factory=list)
    given: set[int] = field(default_factory=set)  # numbers of the values that a row gives

    def find(self, tensors: Iterable[torch.Tensor]) -> list[int]:
        """The numbers of the values that one of the tensors equals."""
        for tensor in tensors:
            mine = Fingerprint(tensor)
            if mine.count < FEWEST:
                continue
            found = [i for i, value in enumerate(self.values) if mine.equals(value.fingerprint)]
            if found:
                return found
        return []

    def look_up(self, row, results: list[list[torch.Tensor]]) -> None:
        """Note which values the row gives. results: the float32 stream of each, by chip."""
        names = []
        for chips in results:
            distinct = list({id(value): value for value in chips}.values())
            found = self.find(_readings(distinct))
            self.given.update(found)
            found.sort(key=lambda number: not self.values[number].is_output)
            names.append(self.values[found[0]].name if found else "")
        row.found = tuple(map(bool, names))
        row.equals = ", ".join(dict.fromkeys(filter(None, names)))

    def bracket(self, rows: list) -> Optional[Bracket]:
        """None: no row gives a value of the reference, or no value is missing."""
        explained, anchored = set(self.given), set()
        for number in reversed(range(len(self.values))):  # children come after their parents
            if number in explained:
                explained.update(self.values[number].parents)
        for number, value in enumerate(self.values):
            if number in self.given or value.parents & anchored:
                anchored.add(number)
        left = [n for n, v in enumerate(self.values) if v.is_output and n not in explained]
        missing = next((self.values[n] for n in left if n in anchored), None)
        if missing is None or not self.given:
            return None
        last, suspects = self._suspects(rows)
        return Bracket(last, missing, suspects)

    def _suspects(self, rows: list) -> tuple[Optional[object], list]:
        """The last equal row before the suspects, and these.

        A result is good if it is a value of the reference, or if a good result is computed of it. A row with other
        results is a suspect if all its inputs are good. So is the row before, if it is itself no value and there is
        room. Rows before the first equal one (a prompt, where the reference has a step alone) count as good. Rows of
        host tensors alone (tables, masks) and results that no row reads are suspects only if there are no others.
        """
        equal = {(row.number, i) for row in rows for i, found in enumerate(row.found) if found}
        sources = {(row.number, 0) for row in rows if row.op == FROM_HOST}
        first_equal = min((number for number, _ in equal), default=1)
        earlier = {(r.number, i) for r in rows[: first_equal - 1] for i in range(len(r.found))}
        good = equal | sources | earlier
        read: set[tuple[int, int]] = set()
        suspects = set()
        for row in reversed(rows):
            results = {(row.number, i) for i in range(len(row.found))}
            if results & good:
                good |= row.inputs
            if not (results <= good or (row.in_place and not results & read)):
                suspects.add(row.number)
            read |= row.inputs
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
        found, nothing = self.bracket(rows), []
        if not any(any(row.found) for row in rows if row.op != FROM_HOST):
            nothing = ["reference: no operation gives a value of it: the inputs or the weights may differ"]
        if found is None:
            every = ["reference: every output of its modules is given, or something computed of it"]
            if nothing:
                return nothing + self._first_of_a_shape(rows)
            return every + self._not_judged(rows)
        last, missing, suspects = found
        lines = nothing + [f"reference: first output that no operation gives: {missing.name} {list(missing.shape)}"]
        if last is not None:
            lines.append(f"  last equal: {_line(last)} {last.op} = {last.equals}")
        for row in suspects:
            wrong = [i + 1 for i, found in enumerate(row.found) if not found]
            which = f", results {wrong} of {len(row.found)}" if len(row.found) > 1 else ""
            lines.append(f"  first unequal: {_line(row)} {row.op} {list(row.slot.shape)}{which}")
        return lines

    def _not_judged(self, rows: list) -> list[str]:
        """A line about the operations after the last value of the reference: nothing says what they should give."""
        judged = max(i for i, row in enumerate(rows) if any(row.found))
        later = [row for row in rows[judged + 1 :] if row.op != FROM_HOST]
        if not later:
            return []
        return [
            f"  after its last value, and not judged: {len(later)} operation{'s' * (len(later) > 1)}, the first {_line(later[0])} {later[0].op}"
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
    yield torch.cat([chip.flatten() for chip in chips])
    if len({chip.shape for chip in chips}) == 1:
        yield sum(chips[1:], start=chips[0])


class _Watch(TorchFunctionMode):
    """Notes the result of each torch function."""

    def __init__(self, reference: Reference):
        super().__init__()
        self.reference = reference
        self.modules: list[str] = []  # names of those that run, the innermost last
        self.numbers = WeakIdKeyDictionary()  # tensor -> number of its value

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tensors_of(result) if self.modules else ():
            parents = {self.numbers.get(each) for each in tensors_of((args, kwargs))} - {None}
            where = self.modules[-1] if self.modules else ""
            self.note(tensor, f"{where}: {getattr(function, '__name__', function)}", parents)
        return result

    def note(self, tensor: torch.Tensor, name: str, parents: Iterable[int]) -> None:
        mine = Fingerprint(tensor)
        if mine.count < FEWEST:
            return
        for number in parents:  # another view of it, or another dtype
            theirs = self.reference.values[number].fingerprint
            if mine.count == theirs.count and torch.allclose(mine.sums, theirs.sums, rtol=1e-6):
                self.numbers[tensor] = number
                return
        value = Value(name, tuple(tensor.shape), mine.keep(), frozenset(parents))
        self.numbers[tensor] = len(self.reference.values)
        self.reference.values.append(value)

    def entering(self, name: str, inputs) -> None:
        if not self.modules:
            for tensor in tensors_of(inputs):
                self.note(tensor, "input", ())
        self.modules.append(name)

    def leaving(self, name: str, output) -> None:
        self.modules.pop()
        for tensor in tensors_of(output):
            if tensor not in self.numbers:
                self.note(tensor, name, ())
            if tensor in self.numbers:
                value = self.reference.values[self.numbers[tensor]]
                if not value.is_output and value.name != "input":
                    value.name, value.is_output = name or "the module", True


def tensors_of(values) -> Iterator[torch.Tensor]:
    """Yield the floating-point tensors inside nested arguments or results."""
    if isinstance(values, torch.Tensor):
        if values.is_floating_point():
            yield values
    elif isinstance(values, dict):
        yield from tensors_of(list(values.values()))
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from tensors_of(value)


@contextlib.contextmanager
def watching(module: torch.nn.Module, reference: Reference) -> Iterator[None]:
    """Keep the values that the module computes inside the block."""
    watch, hooks = _Watch(reference), []
    for name, part in module.named_modules():
        enter = lambda _, args, kwargs, name=name: watch.entering(name, (args, kwargs))  # noqa: E731
        leave = lambda _, __, output, name=name: watch.leaving(name, output)  # noqa: E731
        hooks.append(part.register_forward_pre_hook(enter, with_kwargs=True))
        hooks.append(part.register_forward_hook(leave))
    try:
        with watch:
            yield
    finally:
        for hook in hooks:
            hook.remove()

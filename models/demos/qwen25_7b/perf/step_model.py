"""A decode step's modelled time: the captured operations, their bounds, and where the time goes. Pure functions."""

from collections import Counter
from dataclasses import dataclass

from models.demos.qwen25_7b.perf.bounds import DRAM, Bound, Rates, Work, bound, work_of
from models.demos.qwen25_7b.perf.captured import Op

COMPUTE_UNKNOWN = ("TopK", "ArgMax", "Sampling", "Sort")  # search many columns: more than a launch, not modelled


@dataclass(frozen=True)
class Row:
    """Equal operations of a step."""

    op: Op
    count: int  # launches a step
    in_layer: bool
    work: Work
    bound: Bound

    @property
    def seconds(self) -> float:
        """Of all launches; so are the others."""
        return self.count * self.bound.seconds

    @property
    def floor(self) -> float:
        return self.count * self.bound.floor

    @property
    def loss(self) -> float:
        return self.seconds - self.floor


@dataclass(frozen=True)
class StepModel:
    rows: tuple[Row, ...]
    weights: int  # bytes of the model's own weights that a chip multiplies by, nothing padded

    @property
    def seconds(self) -> float:
        return sum(row.seconds for row in self.rows)

    @property
    def launches(self) -> int:
        return sum(row.count for row in self.rows)

    @property
    def streamed(self) -> int:
        """Bytes of weights that a chip reads, with the padding of the banks. Biases are streamed as weights are."""
        return sum(row.count * row.work.streamed for row in self.rows)

    @property
    def floor(self) -> float:
        """Seconds to stream the weights, unpadded, at all of DRAM's bandwidth."""
        return self.weights / DRAM

    def parts(self) -> dict[str, float]:
        """Seconds by what they go to; they add up to `seconds`."""
        spent = Counter()
        for row in self.rows:
            b = row.bound
            largest = max(b.dram, b.compute, b.ethernet)
            if largest == b.dram:
                kind = "streaming weights" if row.work.streamed else "interleaved DRAM (cache)"
            else:
                kind = "compute" if largest == b.compute else "ethernet"
            spent[kind] += row.count * largest
            spent["launches"] += row.count * b.launch
        return dict(spent)

    def worst(self, count: int) -> list[Row]:
        """What loses most against its own floor, over all its launches of a step."""
        return sorted(self.rows, key=lambda row: -row.loss)[:count]

    def unknown(self) -> list[str]:
        """Operations that surely take longer than the model says."""
        return sorted({row.op.call for row in self.rows if row.op.name.startswith(COMPUTE_UNKNOWN)})


def model_step(
    step,
    rates: Rates,
    *,
    weights: int,
    chips: int,
    grid_cores: int,
    links: int,
    users: int,
    position: int,
    tokens: int = 1,
) -> StepModel:
    """step: a capture.Step. weights: as in StepModel. users: of a replica, each with `position` tokens behind it; tokens: of
    each of them in the step."""
    launches = Counter()
    layers = [(ops, count, True) for ops, count in step.kinds]
    for ops, times, in_layer in ((step.before, 1, False), *layers, (step.after, 1, False)):
        for op in ops:
            launches[op, in_layer] += times
    rows = []
    for (op, in_layer), count in launches.items():
        work = work_of(op, chips=chips, grid_cores=grid_cores, users=users, position=position, tokens=tokens)
        rows.append(Row(op, count, in_layer, work, bound(work, rates, links)))
    return StepModel(tuple(rows), weights)

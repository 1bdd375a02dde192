"""The modeled time of a decode step and of a prompt: operations, their bounds, and where the time goes."""

from collections import Counter
from dataclasses import dataclass
from typing import Sequence

import ttnn
from golden_mesh.perf.calibration import calibrate
from golden_mesh.perf.device_ops import Op
from golden_mesh.perf.op_costs import (
    DRAM,
    Bound,
    Rates,
    Work,
    bound,
    matmul_peak,
    work_of,
)

from models.demos.qwen25_7b.config import QWEN25_7B, ParallelPlan, Recipe
from models.demos.qwen25_7b.perf.capture import CapturedBatch, Step, capture_prefill, capture_step
from models.demos.qwen25_7b.plans.blocks import BLOCK, blocks_for
from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
from models.demos.qwen25_7b.plans.grids import worker_grid
from models.demos.qwen25_7b.plans.memory_budget import check_fits, memory_budget, step_bytes

SEARCHES = (
    "TopK",
    "ArgMax",
    "Sampling",
    "Sort",
)  # longer than the model says: it counts their bytes and a launch


@dataclass(frozen=True)
class Row:
    """Equal operations of a step. Seconds are of all of them."""

    op: Op
    count: int  # launches a step
    in_layer: bool
    work: Work
    bound: Bound

    @property
    def seconds(self) -> float:
        return self.count * self.bound.seconds

    @property
    def floor(self) -> float:
        return self.count * self.bound.floor

    @property
    def loss(self) -> float:
        return self.seconds - self.floor


@dataclass(frozen=True)
class StepModel:
    """A decode step or a prefill batch."""

    rows: tuple[Row, ...]
    weights: int  # bytes of the model's own weights on a chip, unpadded

    @property
    def seconds(self) -> float:
        return sum(row.seconds for row in self.rows)

    @property
    def launches(self) -> int:
        return sum(row.count for row in self.rows)

    @property
    def streamed(self) -> int:
        """Bytes of weights and biases that a chip reads, with the padding of the banks."""
        return sum(row.count * row.work.streamed for row in self.rows)

    @property
    def floor(self) -> float:
        """Seconds to stream the unpadded weights at DRAM's full bandwidth."""
        return self.weights / DRAM

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

    def worst(self, count: int) -> list[Row]:
        """The rows with the largest loss against their own floor."""
        return sorted(self.rows, key=lambda row: -row.loss)[:count]

    def searches(self) -> list[str]:
        """Operations that take longer than the model says."""
        return sorted({row.op.call for row in self.rows if row.op.name.startswith(SEARCHES)})


def model_step(
    step: Step,
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
    """weights: as in StepModel. users, position and tokens: as in op_costs.work_of."""
    launches = Counter()
    layers = [(ops, count, True) for ops, count in step.kinds]
    for ops, times, in_layer in ((step.before, 1, False), *layers, (step.after, 1, False)):
        for op in ops:
            launches[op, in_layer] += times
    here = dict(chips=chips, grid_cores=grid_cores, users=users, position=position, tokens=tokens)
    rows = []
    for (op, in_layer), count in launches.items():
        work = work_of(op, **here)
        rows.append(Row(op, count, in_layer, work, bound(work, rates, links)))
    return StepModel(tuple(rows), weights)


@dataclass(frozen=True)
class PrefillModel:
    """The prefill batches of one prompt: rows, first position, and the operations of each."""

    batches: tuple[tuple[int, int, StepModel], ...]
    grid_cores: int

    @property
    def seconds(self) -> float:
        return sum(model.seconds for _, _, model in self.batches)

    @property
    def rows(self) -> list[Row]:
        return [row for _, _, model in self.batches for row in model.rows]

    @property
    def peak_share(self) -> float:
        """Share of the matrix engines' peak, on all cores at the fidelities of the operations."""
        at_peak = sum(
            row.count * row.work.needed_flops / matmul_peak(row.work.fidelity, self.grid_cores)
            for row in self.rows
            if row.work.needed_flops
        )
        return at_peak / self.seconds

    def parts(self) -> dict[str, float]:
        """Seconds by part."""
        parts = Counter()
        for _, _, model in self.batches:
            parts.update(model.parts())
        return dict(parts)


def model_prefill(
    batches: Sequence[CapturedBatch], rates: Rates, *, chips: int, grid_cores: int, links: int
) -> PrefillModel:
    """batches: of one prompt."""
    here = dict(weights=0, chips=chips, grid_cores=grid_cores, links=links, users=1)
    return PrefillModel(
        tuple(
            (b.rows, b.start, model_step(b.step, rates, position=b.start, **here)) for b in batches
        ),
        grid_cores,
    )


def model_decode(
    device: ttnn.MeshDevice,
    recipe: Recipe,
    *,
    users: int,
    position: int,
    links: int,
    tokens: int = 1,
) -> tuple[StepModel, int]:
    """Capture and model a step of the 7B on a row of chips. Returns it, and the number of layers.

    tokens: of each user that the step computes; more than one: it verifies draft tokens.
    UserError: the model and the cache do not fit.
    """
    plan, grid = ParallelPlan.make(QWEN25_7B, device.shape[1]), worker_grid(device)
    slots, context = DecodePlan.make(QWEN25_7B, plan, grid, users).batch, position + 1
    blocks = blocks_for(slots, context, BLOCK)
    check_fits(device, memory_budget(QWEN25_7B, plan, recipe, context, blocks))
    step = capture_step(device, QWEN25_7B, recipe, users, tokens)
    planned = step_bytes(QWEN25_7B, plan, recipe, users, position)
    model = model_step(
        step,
        calibrate().rates,
        weights=planned.weights - planned.padding,
        chips=plan.tp,
        grid_cores=grid.cores,
        links=links,
        users=users,
        position=position,
        tokens=tokens,
    )
    return model, step.layers


def model_prompt(device: ttnn.MeshDevice, recipe: Recipe, tokens: int, links: int) -> PrefillModel:
    """Capture and model the prefill of one prompt of the 7B on a row of chips."""
    batches = capture_prefill(device, QWEN25_7B, recipe, tokens)
    cores = worker_grid(device).cores
    how = dict(chips=device.shape[1], grid_cores=cores, links=links)
    return model_prefill(batches, calibrate().rates, **how)

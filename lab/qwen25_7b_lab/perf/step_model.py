"""The modeled time of a decode step and of a prompt: operations, their prices, and where the time goes."""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import starmap

import ttnn

from models.demos.qwen25_7b.config import DecoderConfig, Recipe
from models.demos.qwen25_7b.config.sampling import GREEDY, SamplingParams
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.plans.blocks import BLOCK, blocks_for
from models.demos.qwen25_7b.plans.chip import Chip
from models.demos.qwen25_7b.plans.decode_plan import DecodeLayout
from models.demos.qwen25_7b.plans.memory_budget import memory_budget
from models.demos.qwen25_7b.plans.model_table import ModelTable
from models.demos.qwen25_7b.plans.parallel_plan import ParallelPlan
from models.demos.qwen25_7b.tt.placement import check_fits, chip_of

from ..prices.device_ops import Op
from ..prices.laws import DRAM as BYTES_A_MICROSECOND
from ..prices.op_costs import DRAM, matmul_peak
from ..prices.prices import Prices, Row
from .capture import Step, capture_prefill, capture_step
from .plan_tables import step_bytes


@dataclass(frozen=True)
class StepModel(Prices):
    """A decode step or a prefill batch."""

    around: tuple[Row, ...]  # the layers
    in_layer: tuple[Row, ...]  # all layers'
    weights: int  # bytes of the model's own weights on a chip, unpadded
    bandwidth: float = DRAM  # bytes a second

    @property
    def rows(self) -> tuple[Row, ...]:
        return self.around + self.in_layer

    @property
    def streamed(self) -> int:
        """Bytes of weights and biases that a chip reads, with the padding of the banks."""
        return sum(row.count * row.work.streamed for row in self.rows)

    @property
    def floor(self) -> float:
        """Seconds to stream the unpadded weights at DRAM's full bandwidth."""
        return self.weights / self.bandwidth


Measured = dict[str, float]  # key of a device operation -> seconds of a launch


def model_step(
    step: Step, *, weights: int, measured: Measured = {}, bandwidth: float = DRAM, **where: int | str
) -> StepModel:
    """weights, bandwidth: as in StepModel. where: keyword arguments of Row.make: links, chips, users, position ..."""

    def priced(op: Op, count: int) -> Row:
        """At its measured time, which has the gap after the kernel, if there is one."""
        row, seconds = Row.make(op, count, **where), measured.get(op.key)
        return replace(row, bound=replace(row.bound, kernel=seconds, gap=0.0)) if seconds else row

    around, in_layer = Counter((*step.before, *step.after)), Counter()
    for ops, times in step.kinds:
        for op in ops:
            in_layer[op] += times
    rows = (tuple(starmap(priced, launches.items())) for launches in (around, in_layer))
    return StepModel(*rows, weights, bandwidth)


@dataclass(frozen=True)
class PrefillModel(Prices):
    """The prefill batches of one prompt: rows, and the operations of each."""

    batches: tuple[tuple[int, StepModel], ...]
    grid_cores: int
    arch: str

    @property
    def rows(self) -> list[Row]:
        return [row for _, model in self.batches for row in model.rows]

    @property
    def peak_share(self) -> float:
        """Share of the matrix engines' peak, on all cores at the fidelities of the operations."""
        at_peak = sum(
            row.count * row.work.needed_flops / matmul_peak(row.work.fidelity, self.grid_cores, self.arch)
            for row in self.rows
            if row.work.needed_flops
        )
        return at_peak / self.seconds


def model_decode(
    device: ttnn.MeshDevice,
    config: DecoderConfig,
    recipe: Recipe,
    *,
    users: int,
    position: int,
    links: int,
    tokens: int = 1,
    sampling: SamplingParams = GREEDY,
    measured: Measured = {},
) -> tuple[StepModel, int]:
    """Capture and model a step of a model on a row of chips. Returns it, and the number of layers.

    tokens: of each user that the step computes; more than one: it verifies draft tokens.
    UserError: the model and the cache do not fit, or there is no price for the chip.
    """
    plan, chip = ParallelPlan.make(config, device.shape[1]), chip_of(device)
    table = ModelTable(config, plan, recipe, chip)
    slots, context = DecodeLayout.make(config, plan, chip, users).slots, position + 1
    check_fits(device, memory_budget(table, context, blocks_for(slots, context, BLOCK)))
    step = capture_step(device, config, recipe, users, tokens, sampling)
    planned = step_bytes(table, users, position)
    model = model_step(
        step,
        weights=planned.weights - planned.padding,
        chips=plan.tp,
        grid_cores=chip.grid.cores,
        links=links,
        users=users,
        position=position,
        tokens=tokens,
        measured=measured,
        bandwidth=chip.bandwidth,
        arch=arch_of(chip),
    )
    return model, step.layers


def model_prompt(
    device: ttnn.MeshDevice, config: DecoderConfig, recipe: Recipe, tokens: int, links: int
) -> PrefillModel:
    """Capture and model the prefill of one prompt on a row of chips."""
    chip = chip_of(device)
    cores, arch = chip.grid.cores, arch_of(chip)
    where = dict(chips=device.shape[1], grid_cores=cores, links=links, users=1, arch=arch)
    batches = tuple(
        (batch.rows, model_step(step, weights=0, position=batch.chunks[0].start, **where))
        for batch, step in capture_prefill(device, config, recipe, tokens)
    )
    return PrefillModel(batches, cores, arch)


def arch_of(chip: Chip) -> str:
    """The name that prices have for the chip's architecture. UserError for DRAM of another bandwidth than the rows'."""
    arch = chip.architecture.lower().removesuffix("_b0")
    if chip.bandwidth != 1e6 * BYTES_A_MICROSECOND[arch]:
        raise UserError(
            f"no price for a chip of {chip.banks} banks of DRAM ({chip.bandwidth / 1e9:.0f} GB/s): the measured rows "
            f"of {arch} are of chips with {BYTES_A_MICROSECOND[arch] / 1e3:.0f} GB/s"
        )
    return arch

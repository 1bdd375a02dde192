"""Counts from the plans: DRAM of a chip and bytes of a step, for every split."""

from dataclasses import dataclass

from models.demos.qwen25_7b.config import BFP8_KV8, QWEN25_7B, DecoderConfig, Recipe
from models.demos.qwen25_7b.plans.all_reduce_plan import AllReducePlan
from models.demos.qwen25_7b.plans.blocks import BLOCK, blocks_for
from models.demos.qwen25_7b.plans.chip import Chip
from models.demos.qwen25_7b.plans.decode_plan import HOP, DecodeMatmul
from models.demos.qwen25_7b.plans.grids import TILE, TILE_BYTES, ceil_div
from models.demos.qwen25_7b.plans.machines import MACHINES, MachineKind
from models.demos.qwen25_7b.plans.memory_budget import cached_tile_bytes, memory_budget
from models.demos.qwen25_7b.plans.model_table import LinearSpec, ModelTable
from models.demos.qwen25_7b.plans.parallel_plan import SPLITS, ParallelPlan
from models.demos.qwen25_7b.plans.slices import TensorRange

from ..options import markdown
from ..prices.collective_prices import Collective

USERS, CONTEXT, POSITION = 32, 2048, 1024


@dataclass(frozen=True)
class StepBytes:
    """Bytes that a chip reads in a step."""

    weights: int  # read from DRAM, padding of the banks included
    padding: int  # the part of `weights` that fills up banks
    cache: int  # read from DRAM


def step_bytes(table: ModelTable, users: int, position: int) -> StepBytes:
    """A step of `users` users, each with `position` tokens before the new one."""
    read = sum(times * linear.streamed_bytes for linear, times in table.step)
    needed = sum(times * _own_bytes(linear) for linear, times in table.step)
    blocks = users * ceil_div(position + 1, TILE)
    tiles = blocks * table.parallel.kv_heads * (table.dims.head_width // TILE)
    return StepBytes(weights=read, padding=read - needed, cache=2 * tiles * cached_tile_bytes(table))


def _own_bytes(linear: LinearSpec) -> int:
    """Bytes of the model's own rows and columns on a chip, on average; a KV head counts on each of its chips."""
    slices, group = linear.weight.slices, linear.group
    own = sum(block.count for part in slices for block in part.blocks if isinstance(block, TensorRange))
    return ceil_div(own, TILE * len(slices)) * ceil_div(slices[0].other, TILE) * TILE_BYTES[group.format]


def splits_table() -> str:
    """DRAM of a chip, and the bytes of a step, for every split of every machine."""
    header = (
        "machine", "split", "DRAM of a chip: weights + cache + activations", "weights read a step (padding)",
        "cache read a step", "an all-reduce, through the busiest link",
    )  # fmt: skip
    title = (
        f"Recipe {BFP8_KV8.name}, {USERS} users a replica; cache for {CONTEXT} tokens a user, read at "
        f"position {POSITION}."
    )
    rows = [_split_row(kind, tp) for kind in MACHINES.values() for tp in reversed(SPLITS) if kind.row % tp == 0]
    return f"{title}\n\n{markdown(header, rows)}"


def _split_row(kind: MachineKind, tp: int) -> tuple[str, ...]:
    table = ModelTable(QWEN25_7B, ParallelPlan.make(QWEN25_7B, tp), BFP8_KV8, kind.chip)
    budget = memory_budget(table, CONTEXT, blocks_for(USERS, CONTEXT, BLOCK))
    step = step_bytes(table, USERS, POSITION)
    topology = "ring" if kind.is_ring(tp) else "line"
    all_reduce = AllReducePlan.make(tp, topology, QWEN25_7B.hidden_size, links=kind.links)
    parts = (budget.weights, budget.cache, budget.activations)
    return (
        kind.name,
        f"tp {tp} x dp {kind.chips // tp}",
        f"{' + '.join(f'{part / 1e9:.2f}' for part in parts)} = {budget.total / 1e9:.2f} GB",
        f"{step.weights / 1e9:.3f} GB ({step.padding / (step.weights - step.padding):.1%})",
        f"{step.cache / 1e9:.3f} GB",
        f"{sent(all_reduce) / kind.links / 1024:.0f} KiB",
    )


def collectives(plan: AllReducePlan) -> tuple[Collective, ...]:
    """all_reduce_async counts as an all-gather: each chip sends its whole partial sum to all others."""
    topology = plan.topology if plan.chips == 8 else "line"  # no other ring was measured
    how, size = (plan.chips, topology), plan.partial_sum_bytes
    if plan.method == "none":
        return ()
    if plan.method == "all_reduce_async":
        return (Collective("all_gather", *how, plan.chips * size),)
    return Collective("reduce_scatter", *how, size), Collective("all_gather", *how, size)


def sent(plan: AllReducePlan) -> int:
    """Bytes through the busiest link in one direction."""
    return sum(collective.sent for collective in collectives(plan))


def hops_table(config: DecoderConfig, recipe: Recipe, chip: Chip) -> str:
    """The chain of multicasts of each decode matmul."""
    rows = []
    for tp in SPLITS:
        plans = ModelTable(config, ParallelPlan.make(config, tp), recipe, chip).decode_matmuls
        lm_head = [name for name in plans if name.startswith("LM head")]
        of_layer = [plan for name, plan in plans.items() if name not in lm_head]
        columns = ("QKV", "O", "gate + up" if "gate + up" in plans else "gate", "down")
        cells = [hops(plans[name]) for name in columns]
        shards = "; ".join(hops(plans[name]) for name in lm_head)
        rows.append((f"tp {tp}", *cells, shards, f"{sum(plan.k_tiles // plan.in0_block_w for plan in of_layer)}"))
    title = (
        f"Recipe {recipe}, {chip.grid.x}x{chip.grid.y} cores. Hops of a matmul x us of weights a hop at "
        f"{1e-9 * chip.matmul_bandwidth:.1f} GB/s a chip. A planned block is the first with {1e6 * HOP:.0f} us of "
        "weights or more, and more than its partial sums take, where L1 allows it. tp 8 joins gate and up where that "
        "saves padding."
    )
    header = ("split", "QKV", "O", "gate, up (each)", "down", "LM head", "hops a layer")
    return f"{title}\n\n{markdown(header, rows)}"


def hops(plan: DecodeMatmul) -> str:
    """Blocks of x that are multicast one after the other, and the time of each one's weights."""
    return f"{plan.k_tiles // plan.in0_block_w} x {1e6 * plan.hop_seconds:.2f}"

"""Counts from the plans: DRAM of a chip and bytes of a step, for every split."""

from ..cli.terminal import markdown
from ..config import BFP8_KV8, QWEN25_7B
from ..plans.all_reduce_plan import AllReducePlan
from ..plans.blocks import BLOCK, blocks_for
from ..plans.machines import MACHINES, MachineKind
from ..plans.memory_budget import memory_budget, step_bytes
from ..plans.parallel_plan import SPLITS, ParallelPlan
from .all_reduce_prices import sent

USERS, CONTEXT, POSITION = 32, 2048, 1024


def splits_table() -> str:
    """DRAM of a chip, and the bytes of a step, for every split of every machine."""
    header = (
        "machine",
        "split",
        "DRAM of a chip: weights + cache + activations",
        "weights read a step (padding)",
        "cache read a step",
        "an all-reduce, through the busiest link",
    )
    title = (
        f"Recipe {BFP8_KV8.name}, {USERS} users a replica; cache for {CONTEXT} tokens a user, read at "
        f"position {POSITION}."
    )
    rows = [
        _split_row(kind, tp)
        for kind in MACHINES.values()
        for tp in reversed(SPLITS)
        if kind.row % tp == 0
    ]
    return f"{title}\n\n{markdown(header, rows)}"


def _split_row(kind: MachineKind, tp: int) -> tuple[str, ...]:
    parallel = ParallelPlan.make(QWEN25_7B, tp)
    blocks = blocks_for(USERS, CONTEXT, BLOCK)
    budget = memory_budget(QWEN25_7B, parallel, BFP8_KV8, CONTEXT, blocks)
    step = step_bytes(QWEN25_7B, parallel, BFP8_KV8, USERS, POSITION)
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

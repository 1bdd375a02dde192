"""Counts from the plans: DRAM of a chip and bytes of a step, for every split."""

from dataclasses import replace

from ..cli.terminal import markdown
from ..config import BFP8_KV8, QWEN25_7B, QwenConfig, Recipe
from ..plans.all_reduce_plan import AllReducePlan
from ..plans.blocks import BLOCK, blocks_for
from ..plans.decode_plan import HALF_CORES, HOP, DecodeMatmul, GateUpLayout, plan_decode_matmul
from ..plans.grids import TILE, Grid, ceil_div, divisors, most_even, residual_grid
from ..plans.machines import MACHINES, MachineKind
from ..plans.memory_budget import decode_matmuls, memory_budget, step_bytes
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
    rows = [_split_row(kind, tp) for kind in MACHINES.values() for tp in reversed(SPLITS) if kind.row % tp == 0]
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


def hops_table(config: QwenConfig, recipe: Recipe) -> str:
    """The multicasts of each decode matmul, one after the other: blocks within a shard of x, and the planned ones."""
    rows = []
    for tp in SPLITS:
        plans = decode_plans(config, ParallelPlan.make(config, tp), recipe, Grid(8, 8))
        cells, before, after = [], 0, 0
        for plan in plans.values():
            shard = plan.k_tiles // plan.in_cores
            narrow = replace(plan, in0_block_w=max(w for w in divisors(shard) if w <= 8))
            if plan.in0_block_w < shard:
                narrow = plan  # L1 holds no longer block
            cells.append(" to ".join(dict.fromkeys(map(_hops, (narrow, plan)))))
            before, after = before + narrow.hops, after + plan.hops
        rows.append((f"tp {tp}", ", ".join(f"{n} {c}" for n, c in zip(plans, cells)), f"{before} to {after}"))
    title = (
        f"Recipe {recipe}, 8x8 cores. Hops of a matmul x us of weights a hop at 249.5 GB/s a chip: with blocks within one core's x, "
        f"then as planned, at least {1e6 * HOP:.0f} us where L1 allows it. All matmuls once; a layer has gate and up."
    )
    return f"{title}\n\n{markdown(('split', 'hops', 'in all'), rows)}"


def _hops(plan: DecodeMatmul) -> str:
    return f"{plan.hops} x {1e6 * plan.hop_seconds:.2f}"


def decode_plans(config: QwenConfig, parallel: ParallelPlan, recipe: Recipe, grid: Grid) -> dict[str, DecodeMatmul]:
    """The plans of a chip's decode matmuls by name, as the modules make them (test_decode_ops.py compares them)."""
    residual = residual_grid(config.hidden_size // TILE, grid, parallel.tp).cores
    gate_up = GateUpLayout.make(config, parallel, recipe)
    # By name: cores of the input, where they are not the residual's; cores for the result, where they are not all.
    in_cores = {"O": parallel.q_heads, "down": most_even(gate_up.tiles, grid.cores)}
    out_cores = {"O": residual, "down": residual, "gate + up": 2 * HALF_CORES}
    return {
        w.name: plan_decode_matmul(
            ceil_div(w.rows, TILE),
            ceil_div(w.columns, TILE),
            in_cores.get(w.name, residual),
            w.format,
            out_cores=out_cores.get(w.name, grid.cores),
            divides=config.head_dim // TILE if w.name == "QKV" else 0,
        )
        for w in decode_matmuls(config, parallel, recipe)
    }

"""Counts from the plans: DRAM and bytes of every split, and the plan of every decode matmul."""

from models.demos.qwen25_7b.cli.terminal import markdown
from models.demos.qwen25_7b.config import BFP8, BFP8_KV8, QWEN25_7B, QwenConfig, Recipe
from models.demos.qwen25_7b.perf.all_reduce_prices import sent
from models.demos.qwen25_7b.plans.all_reduce_plan import AllReducePlan
from models.demos.qwen25_7b.plans.blocks import BLOCK, blocks_for
from models.demos.qwen25_7b.plans.decode_plan import HALF_CORES, GateUpLayout, plan_decode_matmul
from models.demos.qwen25_7b.plans.grids import (
    TILE,
    TILE_BYTES,
    Grid,
    ceil_div,
    most_even,
    residual_grid,
)
from models.demos.qwen25_7b.plans.machines import MACHINES, MachineKind
from models.demos.qwen25_7b.plans.memory_budget import decode_matmuls, memory_budget, step_bytes
from models.demos.qwen25_7b.plans.parallel_plan import SPLITS, ParallelPlan

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


def decode_plans(config: QwenConfig, parallel: ParallelPlan, recipe: Recipe, grid: Grid) -> dict:
    """A chip's decode matmuls by name: (plan, times a step), as the modules plan them."""
    residual = residual_grid(config.hidden_size // TILE, grid, parallel.tp).cores
    gate_up = GateUpLayout.make(config, parallel, recipe)
    # By name: cores of the input, where they are not the residual's; cores for the result, where they are not all.
    in_cores = {"O": parallel.q_heads, "down": most_even(gate_up.tiles, grid.cores)}
    out_cores = {"O": residual, "down": residual, "gate + up": 2 * HALF_CORES}
    return {
        w.name: (
            plan_decode_matmul(
                ceil_div(w.rows, TILE),
                ceil_div(w.columns, TILE),
                in_cores.get(w.name, residual),
                w.format,
                out_cores=out_cores.get(w.name, grid.cores),
                divides=config.head_dim // TILE if w.name == "QKV" else 0,
            ),
            w.times,
        )
        for w in decode_matmuls(config, parallel, recipe)
    }


def matmuls_table() -> str:
    """The decode matmuls of every split."""
    return "\n\n".join(f"tp {tp}:\n\n{_matmuls_of(tp)}" for tp in SPLITS)


def _matmuls_of(tp: int) -> str:
    plans = decode_plans(QWEN25_7B, ParallelPlan.make(QWEN25_7B, tp), BFP8, Grid(8, 8))
    tiles = {name: times * p.k_tiles * p.n_tiles for name, (p, times) in plans.items()}
    reads = {name: tiles[name] * (1 + p.padding) for name, (p, _) in plans.items()}
    header = (
        "matmul",
        "times",
        "K x N, tiles",
        "tiles a bank",
        "padding",
        "share of the step's reads",
        "input cores, tiles at a time",
        "output cores, tiles each",
        "L1 of a streaming core",
    )
    rows = [
        (
            name,
            f"{times}",
            f"{p.k_tiles} x {p.n_tiles}",
            f"{p.tiles_a_bank}",
            f"{p.padding:.1%}, {tiles[name] * p.padding * TILE_BYTES[p.weight] / 1e6:.1f} MB",
            f"{reads[name] / sum(reads.values()):.1%}",
            f"{p.in_cores}, {p.in0_block_w}",
            f"{p.out_cores}, {p.per_core_n}",
            f"{p.l1_bytes:,}",
        )
        for name, (p, times) in plans.items()
    ]
    return markdown(header, rows)

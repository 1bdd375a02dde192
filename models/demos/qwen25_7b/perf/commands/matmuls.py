"""What the planner chose for every weight of the 7B that a decode step streams, and what filling up the DRAM banks costs.

Counts from the plans, nothing measured.
"""

import argparse

from models.demos.qwen25_7b.config import BFP8, QWEN25_7B, ParallelPlan, QwenConfig, Recipe


def decode_plans(config: QwenConfig, plan: ParallelPlan, recipe: Recipe, grid) -> dict:
    """A chip's decode matmuls by name, as the modules ask for them, each with how often a step runs it.

    grid: tt.grids.Grid of a chip.
    """
    from models.demos.qwen25_7b.plans.decode_matmul import plan_decode
    from models.demos.qwen25_7b.plans.gate_up_plan import HALF_CORES, GateUpPlan
    from models.demos.qwen25_7b.plans.grids import TILE, ceil_div, most_even, residual_grid
    from models.demos.qwen25_7b.plans.memory_budget import decode_matmuls

    residual = residual_grid(config.hidden_size // TILE, grid, plan.tp).cores
    product = GateUpPlan.make(config, plan, recipe)
    # by name: cores that hold the input, if not the residual's; cores that may take the result, if not all
    reads = {"O": plan.q_heads, "down": most_even(product.tiles, grid.cores)}
    stores = {"O": residual, "down": residual, "gate + up": 2 * HALF_CORES}
    return {
        w.name: (
            plan_decode(
                ceil_div(w.rows, TILE),
                ceil_div(w.columns, TILE),
                reads.get(w.name, residual),
                w.format,
                out_cores=stores.get(w.name, grid.cores),
                divides=config.head_dim // TILE if w.name == "QKV" else 0,
            ),
            w.times,
        )
        for w in decode_matmuls(config, plan, recipe)
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """None: the table has every split."""


def table(args: argparse.Namespace) -> str:
    return "\n\n".join(table_of(tp) for tp in (1, 2, 4, 8))


def table_of(tp: int) -> str:
    from models.demos.qwen25_7b.plans.grids import TILE_BYTES, Grid

    plans = decode_plans(QWEN25_7B, ParallelPlan.make(QWEN25_7B, tp), BFP8, Grid(8, 8))
    reads = {name: times * p.k_tiles * p.n_tiles * (1 + p.padding) for name, (p, times) in plans.items()}  # tiles
    whole = sum(reads.values())
    lines = [
        f"tp {tp}:",
        "",
        "| matmul | times | K x N, tiles | tiles a bank | padding | share of the step's reads | input cores, tiles at a time | "
        "output cores, tiles each | L1 of a streaming core |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, (p, times) in plans.items():
        lost = times * p.k_tiles * p.n_tiles * p.padding * TILE_BYTES[p.weight]
        lines.append(
            f"| {name} | {times} | {p.k_tiles} x {p.n_tiles} | {p.tiles_a_bank} | {p.padding:.1%}, "
            f"{lost / 1e6:.1f} MB | {reads[name] / whole:.1%} | {p.in_cores}, {p.in0_block_w} | {p.out_cores}, {p.per_core_n} | "
            f"{p.l1_bytes:,} |"
        )
    return "\n".join(lines)

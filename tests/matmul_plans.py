"""The plans of a chip's decode matmuls, as the modules make them (test_decode_ops.py compares them)."""

from models.demos.qwen25_7b.config import QwenConfig, Recipe
from models.demos.qwen25_7b.plans.decode_plan import HALF_CORES, GateUpLayout, plan_decode_matmul
from models.demos.qwen25_7b.plans.grids import TILE, Grid, ceil_div, most_even, residual_grid
from models.demos.qwen25_7b.plans.memory_budget import decode_matmuls
from models.demos.qwen25_7b.plans.parallel_plan import ParallelPlan


def decode_plans(config: QwenConfig, parallel: ParallelPlan, recipe: Recipe, grid: Grid) -> dict:
    """By name."""
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

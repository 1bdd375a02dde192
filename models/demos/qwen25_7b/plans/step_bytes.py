"""Bytes that a decode step moves, on one chip: sums over the plan, no device needed."""

from dataclasses import dataclass

from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.plans.grids import TILE, TILE_BYTES, ceil_div
from models.demos.qwen25_7b.plans.memory_budget import cached_tile_bytes, decode_matmuls


@dataclass(frozen=True)
class StepBytes:
    """Of one chip, one step."""

    weights: int  # read from DRAM, padding of the banks included
    padding: int  # of these, read for nothing
    cache: int  # read from DRAM
    sent: int  # a layer's two all-reduces: summands written to other chips


def step_bytes(config: QwenConfig, plan: ParallelPlan, recipe: Recipe, users: int, position: int) -> StepBytes:
    """A step of `users` users, each with `position` tokens behind it."""
    matmuls = decode_matmuls(config, plan, recipe)
    read = sum(matmul.times * matmul.read for matmul in matmuls)
    needed = sum(matmul.times * matmul.needed for matmul in matmuls)
    blocks = users * ceil_div(position + 1, TILE)
    tiles = blocks * plan.kv_heads * (config.head_dim // TILE)
    return StepBytes(
        weights=read,
        padding=read - needed,
        cache=2 * tiles * cached_tile_bytes(config, recipe),
        sent=2 * (plan.tp - 1) * config.hidden_size // TILE * TILE_BYTES[recipe.summands],
    )

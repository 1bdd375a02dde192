"""Bytes that a chip reads in a decode step, as planned."""

from dataclasses import dataclass

from models.demos.qwen25_7b.plans.grids import TILE, ceil_div
from models.demos.qwen25_7b.plans.memory_budget import cached_tile_bytes
from models.demos.qwen25_7b.plans.model_table import ModelTable


@dataclass(frozen=True)
class StepBytes:
    """Bytes that a chip reads in a step."""

    weights: int  # read from DRAM, padding of the banks included
    padding: int  # the part of `weights` that fills up banks
    cache: int  # read from DRAM


def step_bytes(table: ModelTable, users: int, position: int) -> StepBytes:
    """A step of `users` users, each with `position` tokens before the new one."""
    read = sum(times * linear.streamed_bytes for linear, times in table.step)
    needed = sum(times * linear.unpadded_bytes for linear, times in table.step)
    blocks = users * ceil_div(position + 1, TILE)
    tiles = blocks * table.parallel.kv_heads * (table.dims.head_width // TILE)
    return StepBytes(weights=read, padding=read - needed, cache=2 * tiles * cached_tile_bytes(table))

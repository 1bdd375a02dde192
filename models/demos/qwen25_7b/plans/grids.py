"""Grids of cores, and tensors cut over them: pure functions of numbers.

Every L1 shard of a decode step is one tile row high, because a step has one tile row of slots.
"""

from dataclasses import dataclass
from math import gcd
from typing import Literal

TILE = 32  # rows and columns of a tile
TILE_BYTES = {"float32": 4096, "bfloat16": 2048, "bfloat8_b": 1088, "bfloat4_b": 576}


@dataclass(frozen=True)
class Grid:
    """A rectangle of cores at the origin."""

    x: int
    y: int

    @property
    def cores(self) -> int:
        return self.x * self.y

    def residual(self, hidden_tiles: int, tp: int) -> "Grid":
        """The cores that hold the residual stream in decode, an equal number of its tiles each.

        One chip: the most whole rows of cores that divide the tiles. The projections' results lie row by row, which is
        ttnn's order. They land on the residual's cores, so the residual add moves nothing (7B: 8x7 cores of 2 tiles).
        Several chips: at most half the grid. The all-reduce needs free cores beside the residual, and it lays its
        result onto the residual's cores itself (7B: 7x4 cores of 4 tiles).
        """
        if tp == 1:
            choices = [Grid(x, 1) for x in range(1, self.x)] + [Grid(self.x, y) for y in range(1, self.y + 1)]
        else:
            choices = [Grid(x, y) for x in range(1, self.x + 1) for y in range(1, self.y // 2 + 1)]
        return max((g for g in choices if hidden_tiles % g.cores == 0), key=lambda g: (g.cores, g.x))


@dataclass(frozen=True)
class Shards:
    """A tensor in L1: `shape` (rows, columns) of it on each of the grid's first `cores` cores, row by row."""

    layout: Literal["WIDTH_SHARDED", "HEIGHT_SHARDED", "BLOCK_SHARDED"]  # ttnn's names
    grid: Grid
    cores: int
    shape: tuple[int, int]


def width_sharded(width: int, grid: Grid, cores: int = 0) -> Shards:
    """[1, 1, 32, width] cut into blocks of columns over the first cores of the grid; 0: over all."""
    cores = cores or grid.cores
    return Shards("WIDTH_SHARDED", grid, cores, (TILE, width // cores))


def height_sharded(width: int, grid: Grid, cores: int) -> Shards:
    """[1, cores, 32, width]: one tile row, a slot's heads, on each core."""
    return Shards("HEIGHT_SHARDED", grid, cores, (TILE, width))


def block_sharded(rows: int, width: int, grid: Grid) -> Shards:
    """[1, 1, rows, width]: rows over the grid's rows, columns over its columns."""
    return Shards("BLOCK_SHARDED", grid, grid.cores, (rows // grid.y, width // grid.x))


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def most_even(tiles: int, cores: int, divides: int = 0) -> int:
    """The most cores, up to `cores`, that share the tiles evenly; 0: none do.

    divides: tiles that a core's share must divide, so that no core's border cuts a head; 0: any share.
    """
    return max((tiles // share for share in divisors(gcd(tiles, divides)) if tiles // share <= cores), default=0)


def padded_rows(tokens: int) -> int:
    """Rows of the prefill batch for `tokens` tokens: a power of two, at least 32. Few lengths mean few programs."""
    return max(TILE, 1 << (tokens - 1).bit_length())

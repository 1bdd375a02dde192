"""Grids of cores, and memory configs over them: pure functions of numbers.

Every L1 shard of a decode step is one tile row high, because a step has one tile row of slots.
"""

from dataclasses import dataclass

import ttnn

TILE = 32  # rows and columns of a tile
TILE_BYTES = {"float32": 4096, "bfloat16": 2048, "bfloat8_b": 1088, "bfloat4_b": 576}
L1 = 1_393_312  # bytes of a core that the runtime leaves for buffers
SEMAPHORES = 40_000  # bytes that collectives keep: L1_SMALL, or L1 on a mesh that was opened without L1_SMALL


@dataclass(frozen=True)
class Grid:
    """A rectangle of cores at the origin."""

    x: int
    y: int

    @property
    def cores(self) -> int:
        return self.x * self.y


def residual_grid(hidden_tiles: int, grid: Grid, tp: int) -> Grid:
    """The cores that hold the residual stream in decode, an equal number of its tiles each.

    One chip: the most whole rows of cores that divide the tiles. The projections' results lie row by row, which is ttnn's
    order. They land on the residual's cores, so the residual add moves nothing (7B: 8x7 cores of 2 tiles).
    Several chips: at most half the grid. The all-reduce needs free cores beside the residual, and it lays its result onto
    the residual's cores itself (7B: 7x4 cores of 4 tiles).
    """
    if tp == 1:
        choices = [Grid(x, 1) for x in range(1, grid.x)] + [
            Grid(grid.x, y) for y in range(1, grid.y + 1)
        ]
    else:
        choices = [Grid(x, y) for x in range(1, grid.x + 1) for y in range(1, grid.y // 2 + 1)]
    choices = [g for g in choices if hidden_tiles % g.cores == 0]
    return max(choices, key=lambda g: (g.cores, g.x))


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def most_even(tiles: int, cores: int) -> int:
    """The largest number of cores, up to `cores`, that divides `tiles`."""
    return max(n for n in divisors(tiles) if n <= cores)


def padded_rows(tokens: int) -> int:
    """Rows of the prefill batch for `tokens` tokens: a power of two, at least 32. Few lengths mean few programs."""
    return max(TILE, 1 << (tokens - 1).bit_length())


# ---- memory configs


def rectangle(grid: Grid) -> ttnn.CoreRangeSet:
    """All cores of the grid."""
    end = ttnn.CoreCoord(grid.x - 1, grid.y - 1)
    return ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), end)})


def row_major_cores(count: int, grid: Grid, first: int = 0) -> ttnn.CoreRangeSet:
    """`count` cores of the grid, row by row from core number `first`."""
    start = ttnn.CoreCoord(first % grid.x, first // grid.x)
    return ttnn.num_cores_to_corerangeset_in_subcoregrids(
        start, count, rectangle(grid), row_wise=True
    )


def width_sharded(width: int, grid: Grid) -> ttnn.MemoryConfig:
    """[1, 1, 32, width] in L1, cut into blocks of columns over all cores of the grid."""
    return width_sharded_over(width, rectangle(grid))


def width_sharded_over(width: int, cores: ttnn.CoreRangeSet) -> ttnn.MemoryConfig:
    """[1, 1, 32, width] in L1, cut into blocks of columns over the cores in their order."""
    return _l1(ttnn.TensorMemoryLayout.WIDTH_SHARDED, cores, TILE, width // cores.num_cores())


def height_sharded(width: int, cores: ttnn.CoreRangeSet) -> ttnn.MemoryConfig:
    """[1, n, 32, width] in L1: one tile row, a slot's heads, on each of n cores."""
    return _l1(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, cores, TILE, width)


def block_sharded(rows: int, width: int, grid: Grid) -> ttnn.MemoryConfig:
    """[1, 1, rows, columns] in L1: rows over the grid's rows, `width` columns on each column of cores."""
    return _l1(ttnn.TensorMemoryLayout.BLOCK_SHARDED, rectangle(grid), rows // grid.y, width)


def _l1(
    layout: ttnn.TensorMemoryLayout, cores: ttnn.CoreRangeSet, height: int, width: int
) -> ttnn.MemoryConfig:
    spec = ttnn.ShardSpec(cores, (height, width), ttnn.ShardOrientation.ROW_MAJOR)
    return ttnn.MemoryConfig(layout, ttnn.BufferType.L1, spec)

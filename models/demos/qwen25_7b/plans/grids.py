"""Core grids as numbers: pure functions, tested without a device."""

from dataclasses import dataclass

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


def worker_grid(mesh_device) -> Grid:
    """The cores that plans are made for: the device's compute grid, 8x8 at most.

    8x8 with ethernet dispatch, 8x7 with worker dispatch. A single chip in slow dispatch offers 8x9, of which the last
    row would exist on no other machine.
    """
    grid = mesh_device.compute_with_storage_grid_size()
    return Grid(min(grid.x, 8), min(grid.y, 8))


def residual_grid(hidden_tiles: int, grid: Grid, tp: int) -> Grid:
    """The cores that hold the residual stream in decode, `hidden_tiles` dealt out evenly.

    One chip: as many whole rows of cores as divide the tiles, for there the projections' results, which ttnn lays out
    row by row, land on the same cores, and the residual add moves nothing (7B: 8x7, 2 tiles a core). Several chips: at
    most half the grid, since the all-reduce wants free cores beside it and itself lays its result onto these
    (7B: 7x4, 4 tiles a core, as seen right on simulated chips).
    """
    if tp == 1:
        choices = [Grid(x, 1) for x in range(1, grid.x)] + [Grid(grid.x, y) for y in range(1, grid.y + 1)]
    else:
        choices = [Grid(x, y) for x in range(1, grid.x + 1) for y in range(1, grid.y // 2 + 1)]
    choices = [g for g in choices if hidden_tiles % g.cores == 0]
    return max(choices, key=lambda g: (g.cores, g.x))


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def most_even(tiles: int, cores: int) -> int:
    """The most of `cores` cores that share `tiles` out evenly."""
    return max(n for n in divisors(tiles) if n <= cores)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def padded_rows(tokens: int) -> int:
    """Rows of the pass that computes `tokens` tokens: a power of two, a tile or more. Few lengths mean few programs."""
    return max(TILE, 1 << (tokens - 1).bit_length())

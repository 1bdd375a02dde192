"""How the library divides the inner dim of a matrix product that has no program config, as ttnn 0.81.1 does.

Dest sums a block of tiles of the inner dim. So the block decides the order of a sum in a bfloat16 dest.
"""

import math
from dataclasses import dataclass

import ttnn

from golden_mesh.mesh.buffers import Chip

NARROW = 8  # a result that is more than so many times as long as wide is computed on a row or column of cores
OUTER, INNER = (16, 8, 4, 2), 2  # tiles of a core's block: rows and columns; of the inner dim
DOUBLE = 2  # buffers of each operand
BOTH_DIMS = ttnn.TensorMemoryLayout.BLOCK_SHARDED
ROWS_OF_CORES, COLUMNS_OF_CORES = ttnn.TensorMemoryLayout.WIDTH_SHARDED, ttnn.TensorMemoryLayout.HEIGHT_SHARDED
INTERLEAVED = ttnn.TensorMemoryLayout.INTERLEAVED


@dataclass(frozen=True)
class Choice:
    """The library's choice for a [batch_a, m, k] @ b [batch_b, k, n], in whole tiles."""

    m: int
    k: int
    n: int
    batch_a: int
    batch_b: int
    a: ttnn.MemoryConfig
    b: ttnn.MemoryConfig
    out: ttnn.MemoryConfig
    tile_bytes: tuple[int, ...]  # of a, b, the sums, and of a bias that the kernel adds
    chip: Chip

    def block(self, core_grid=None) -> int:
        """Tiles of the inner dim that dest sums."""
        if core_grid is not None:
            return self._of_grid(core_grid.x, core_grid.y)
        return self._of_shards() if self.a.is_sharded() else self._of_free_cores()

    def _of_free_cores(self) -> int:
        """Operand a is interleaved."""
        in_order = all(c.memory_layout == INTERLEAVED for c in (self.a, self.b, self.out))
        in_dram = all(c.buffer_type == ttnn.BufferType.DRAM for c in (self.a, self.b, self.out))
        everywhere = in_order and in_dram
        if self.batch_a == 1 and self.batch_b > 1 and in_order:
            return self._in_pairs()
        narrow = _is_narrow(self.m, self.n) or (in_dram and 1 in (self.m, self.n))
        core = next((outer for outer in OUTER if self._bytes(outer, INNER) < self.chip.free_l1), 1)
        y, x = -(-self.m // core), -(-self.n // core)
        even = self.k % INNER == 0
        block = 1 if not even and (self.out.is_sharded() or x * y > 1) else INNER
        if not everywhere and not (x * y <= self.chip.cores and self.k % block == 0):
            return self.k
        if x * y == 1 or x > self.chip.columns or y > self.chip.rows:
            x = y = 0  # no part of the grid
        one_line = (narrow and in_order) or (1 in (x, y) and not everywhere)
        out = _layout(self.out) if self.out.is_sharded() and y == 0 else None
        if one_line or out in (ROWS_OF_CORES, COLUMNS_OF_CORES):
            return self._in_pairs()
        if everywhere:
            return self._share()
        return block if y or out == BOTH_DIMS else self.k

    def _share(self) -> int:
        """A column's part of the inner dim, or the part of it that fits beside the largest block of the result."""
        share = self.k // self.chip.columns if self.k % self.chip.columns == 0 else 1
        rows, columns = -(-self.m // self.chip.rows), -(-self.n // self.chip.columns)
        outer = [(y, x) for y in _divisors(rows) for x in _divisors(columns)]
        outer.sort(key=lambda yx: (yx[0] * yx[1], -max(yx) / min(yx)), reverse=True)
        fits = (k for y, x in outer for k in _divisors(share) if self._bytes(y, k, x) < self.chip.free_l1)
        return next(fits, 1)

    def _of_shards(self) -> int:
        spec = self.a.shard_spec
        width, size = spec.shape[1] // ttnn.TILE_SIZE, spec.grid.bounding_box().grid_size()
        if self.batch_b > 1:
            return width
        if self.a.memory_layout == COLUMNS_OF_CORES and size.x * size.y > 1:
            return self.k
        if self.a.memory_layout == ROWS_OF_CORES and size.x * size.y > 1:
            return math.gcd(width, self.k)
        if self.a.memory_layout == BOTH_DIMS and size.x > 1 and size.y > 1:
            columns = size.y if spec.orientation == ttnn.ShardOrientation.COL_MAJOR else size.x
            return math.gcd(width, self.k) if columns == self.k // width else 1
        return self._of_grid(self.chip.columns, self.chip.rows)

    def _of_grid(self, columns: int, rows: int) -> int:
        if columns > self.chip.columns or rows > self.chip.rows:
            columns, rows = self.chip.columns, self.chip.rows
        width = self.a.shard_spec.shape[1] // ttnn.TILE_SIZE if self.a.is_sharded() else 0
        if self.batch_b > 1:
            if width:
                return width
            if self.batch_a == 1 and not self.b.is_sharded():
                return self._in_pairs()
            fits = self.b.is_sharded() or self._bytes(self.m, 1, self.n) < self.chip.free_l1
            return 1 if fits else self._of_free_cores()
        narrow = _is_narrow(self.batch_a * self.m, self.n) or 1 in (self.k, self.m, self.n)
        if self.a.memory_layout != BOTH_DIMS and (narrow or width):
            return next(n for n in _divisors(self.k) if n <= -(-self.k // (columns * rows)))
        return math.gcd(width, self.k) if width else next(n for n in _divisors(self.k) if n <= 4)

    def _in_pairs(self) -> int:
        return INNER if self.k % INNER == 0 else 1

    def _bytes(self, rows: int, inner: int, columns: int | None = None) -> int:
        """The library's estimate of a core's buffers."""
        columns, (a, b, sums, *bias) = columns or rows, self.tile_bytes
        return inner * DOUBLE * (rows * a + columns * b) + rows * columns * (a + sums) + columns * sum(bias)


def _is_narrow(rows: int, columns: int) -> bool:
    return max(rows, columns) // min(rows, columns) > NARROW


def _divisors(whole: int) -> list[int]:
    """The largest first."""
    return [n for n in range(whole, 0, -1) if whole % n == 0]


def _layout(config: ttnn.MemoryConfig):
    """The layout, where shards in one row or one column of cores are as those of the width or the height."""
    if config.memory_layout != BOTH_DIMS or config.shard_spec is None:
        return config.memory_layout
    size = config.shard_spec.grid.bounding_box().grid_size()
    if (size.x == 1) == (size.y == 1):
        return BOTH_DIMS
    return COLUMNS_OF_CORES if size.x == 1 else ROWS_OF_CORES

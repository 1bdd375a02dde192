"""Where a tensor lies on a chip. All L1 shards are one tile row high: decode has one tile row of users."""

import ttnn

from models.demos.qwen25_7b.plans.grids import TILE, Grid, ceil_div


def row_major_cores(count: int, grid: Grid, first: int = 0) -> ttnn.CoreRangeSet:
    """`count` cores of the grid, row by row from core number `first`."""
    everything = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(grid.x - 1, grid.y - 1))})
    start = ttnn.CoreCoord(first % grid.x, first // grid.x)
    return ttnn.num_cores_to_corerangeset_in_subcoregrids(start, count, everything, row_wise=True)


def rectangle(grid: Grid) -> ttnn.CoreRangeSet:
    return ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(grid.x - 1, grid.y - 1))})


def _l1(layout: ttnn.TensorMemoryLayout, cores: ttnn.CoreRangeSet, height: int, width: int) -> ttnn.MemoryConfig:
    spec = ttnn.ShardSpec(cores, (height, width), ttnn.ShardOrientation.ROW_MAJOR)
    return ttnn.MemoryConfig(layout, ttnn.BufferType.L1, spec)


def width_sharded(width: int, grid: Grid) -> ttnn.MemoryConfig:
    """[1, 1, 32, width] cut into column blocks over a rectangle of cores."""
    return width_sharded_over(width, rectangle(grid))


def width_sharded_over(width: int, cores: ttnn.CoreRangeSet) -> ttnn.MemoryConfig:
    """[1, 1, 32, width] cut into column blocks over any cores, in their order."""
    return _l1(ttnn.TensorMemoryLayout.WIDTH_SHARDED, cores, TILE, width // cores.num_cores())


def height_sharded(width: int, cores: ttnn.CoreRangeSet) -> ttnn.MemoryConfig:
    """[1, n, 32, width]: one tile row (a user's heads) on each of n cores."""
    return _l1(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, cores, TILE, width)


def dram_width_sharded(mesh_device: ttnn.MeshDevice, rows: int, columns: int) -> ttnn.MemoryConfig:
    """[rows, columns] cut into column blocks, one a DRAM bank; whole tiles, so the last banks may hold padding."""
    banks = mesh_device.dram_grid_size()
    width = ceil_div(columns, TILE * banks.x * banks.y) * TILE
    spec = ttnn.ShardSpec(rectangle(Grid(banks.x, banks.y)), (rows, width), ttnn.ShardOrientation.ROW_MAJOR)
    return ttnn.MemoryConfig(ttnn.TensorMemoryLayout.WIDTH_SHARDED, ttnn.BufferType.DRAM, spec)


def block_sharded(rows: int, width: int, grid: Grid) -> ttnn.MemoryConfig:
    """[1, 1, rows, up to width * grid.x] cut into blocks: rows over the grid's rows, `width` columns over each of its columns."""
    return _l1(ttnn.TensorMemoryLayout.BLOCK_SHARDED, rectangle(grid), rows // grid.y, width)

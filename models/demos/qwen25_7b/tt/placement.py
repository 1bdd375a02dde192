"""What a mesh is and has room for; ttnn's memory configs of plans; weights and tensors onto every row of the mesh."""

from dataclasses import replace
from typing import Optional, Sequence

import torch
import ttnn

from ..errors import UserError
from ..plans.all_reduce_plan import Topology
from ..plans.chip import CHIPS, Chip
from ..plans.grids import Grid, Shards
from ..plans.memory_budget import MemoryBudget
from ..plans.model_table import Weight
from ..plans.slices import Projection
from ..weights.model_weights import BuildShard


def chip_of(mesh_device: ttnn.MeshDevice) -> Chip:
    """The mesh's chips: what the library reports; the rest is from the table, by architecture and banks of DRAM.

    UserError for chips that are not in the table. Plans use all columns of the device, because ttnn lays heads and
    projections row by row over them, and at most the table's rows: a single Wormhole in slow dispatch offers 8x9, and
    no other machine has that last row. With worker dispatch it has 8x7. A Blackhole's firmware offers 11 to 13 columns.
    """
    architecture, grid = mesh_device.arch().name, mesh_device.compute_with_storage_grid_size()
    kinds = ttnn.BufferType.DRAM, ttnn.BufferType.TRACE, ttnn.BufferType.L1, ttnn.BufferType.L1_SMALL
    dram, trace, l1, small = (ttnn.get_memory_view(mesh_device, kind) for kind in kinds)
    known = next((c for c in CHIPS if (c.architecture, c.banks) == (architecture, dram.num_banks)), None)
    if known is None:
        names = ", ".join(f"{chip.architecture} with {chip.banks}" for chip in CHIPS)
        raise UserError(
            f"plans are made for {names} banks of DRAM; these chips are {architecture} with {dram.num_banks}"
        )
    return replace(
        known,
        grid=Grid(grid.x, min(grid.y, known.grid.y)),
        bank_bytes=dram.total_bytes_per_bank + trace.total_bytes_per_bank,
        dram_alignment=ttnn.get_dram_alignment(),
        l1=l1.total_bytes_per_bank + small.total_bytes_per_bank,
    )


def free_dram(mesh_device: ttnn.MeshDevice) -> int:
    """Bytes of a chip's DRAM that nothing has yet."""
    view = ttnn.get_memory_view(mesh_device, ttnn.BufferType.DRAM)
    return view.num_banks * view.total_bytes_free_per_bank


def check_fits(mesh_device: ttnn.MeshDevice, budget: MemoryBudget, smaller: str = "") -> None:
    """UserError with the sum unless the budget fits a chip's free DRAM. smaller: what fits, for the message."""
    free = free_dram(mesh_device)
    if budget.total > free:
        raise UserError(
            f"the model does not fit: a chip needs {budget}, and has {free / 1e9:.2f} GB: use "
            f"{smaller or 'fewer users, a shorter context'}, a smaller recipe, or more chips a replica"
        )


def rectangle(grid: Grid) -> ttnn.CoreRangeSet:
    """All cores of the grid."""
    end = ttnn.CoreCoord(grid.x - 1, grid.y - 1)
    return ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), end)})


def memory_config(shards: Optional[Shards]) -> ttnn.MemoryConfig:
    """L1, cut over cores; None: interleaved."""
    if shards is None:
        return ttnn.L1_MEMORY_CONFIG
    cores = rectangle(shards.grid)
    if shards.cores < shards.grid.cores:
        first = ttnn.CoreCoord(0, 0)
        cores = ttnn.num_cores_to_corerangeset_in_subcoregrids(first, shards.cores, cores, row_wise=True)
    spec = ttnn.ShardSpec(cores, shards.shape, ttnn.ShardOrientation.ROW_MAJOR)
    return ttnn.MemoryConfig(getattr(ttnn.TensorMemoryLayout, shards.layout), ttnn.BufferType.L1, spec)


def dram_width_sharded(mesh_device: ttnn.MeshDevice, rows: int, columns: int) -> ttnn.MemoryConfig:
    """A tensor of `rows` in DRAM, with so many columns on each bank; the last banks may hold padding."""
    banks = mesh_device.dram_grid_size()
    spec = ttnn.ShardSpec(rectangle(Grid(banks.x, banks.y)), (rows, columns), ttnn.ShardOrientation.ROW_MAJOR)
    return ttnn.MemoryConfig(ttnn.TensorMemoryLayout.WIDTH_SHARDED, ttnn.BufferType.DRAM, spec)


def links_between(mesh_device: ttnn.MeshDevice) -> int:
    """Ethernet links that collectives may use between neighboring chips of a row; 1 where a row is one chip.

    The fabric may keep a link for itself: an N300 board with ethernet dispatch sends commands over one of its two. A
    collective that takes that link hangs (tt-metal issue 25347). Chip.links is the most.
    """
    if mesh_device.shape[1] == 1:
        return 1
    return min(ttnn.get_num_links(mesh_device, cluster_axis=1), chip_of(mesh_device).links)


def row_topology(mesh_device: ttnn.MeshDevice) -> Topology:
    """The topology that collectives of a row of chips use.

    It is a ring where the fabric was opened as a ring and the row's last chip is wired to its first. On a line's fabric
    a collective with a ring's topology hangs.
    """
    if mesh_device.shape[1] == 1:  # without a fabric
        return "line"
    tile = replicate(torch.zeros(1, 1, 32, 32), mesh_device)
    usable = ttnn.get_usable_topology(tile, cluster_axis=1)
    ttnn.deallocate(tile)
    return "ring" if usable == ttnn.Topology.Ring else "line"


def free(*tensors: ttnn.Tensor) -> None:
    for tensor in tensors:
        ttnn.deallocate(tensor)


def add_in_place(x: ttnn.Tensor, y: ttnn.Tensor) -> ttnn.Tensor:
    """x + y, of x's dtype and in its memory: a new tensor would leave a hole in L1. Frees y."""
    ttnn.add(x, y, output_tensor=x)
    ttnn.deallocate(y)
    return x


def host_shards(weight: Weight, build: BuildShard) -> list[ttnn.Tensor]:
    """One host tensor a slice. Equal slices share a tensor."""
    built = {shard: build(shard) for shard in dict.fromkeys(weight.shards)}
    return [built[shard] for shard in weight.shards]


def place(
    weight: Weight,
    mesh_device: ttnn.MeshDevice,
    build: BuildShard,
    memory_config: ttnn.MemoryConfig = ttnn.DRAM_MEMORY_CONFIG,
) -> ttnn.Tensor:
    """A weight on the mesh, [1, 1, rows, columns] a chip; chip c of a row holds weight.slices[c], or a single slice.

    build: tiles and packs a shard on the host, or maps it from the cache.
    """
    host = host_shards(weight, build)
    weight_slice = weight.slices[0]
    if isinstance(weight_slice, Projection) and len(host) == mesh_device.shape[1]:
        joined = to_mesh_rows(host, mesh_device, dim=3 - weight_slice.split_dim)
    else:
        joined = host[0]
    return ttnn.to_device(joined, mesh_device, memory_config=memory_config)


def to_mesh_rows(shards: Sequence[ttnn.Tensor], mesh_device: ttnn.MeshDevice, dim: int) -> ttnn.Tensor:
    """Host tensors of a row's chips, cut along dim -> a host tensor of the mesh, as ShardTensor2dMesh makes it."""
    rows, _ = mesh_device.shape
    host = ttnn.from_host_shards(list(shards) * rows, mesh_device.shape)
    placements = [ttnn.PlacementReplicate(), ttnn.PlacementShard(dim)]
    host.update_tensor_topology(
        ttnn.TensorTopology(mesh_device.shape, placements, host.tensor_topology().mesh_coords())
    )
    return host


def replicate(
    tensor: torch.Tensor,
    mesh_device: ttnn.MeshDevice,
    dtype: ttnn.DataType = ttnn.bfloat16,
    layout: ttnn.Layout = ttnn.TILE_LAYOUT,
    memory_config: ttnn.MemoryConfig = ttnn.DRAM_MEMORY_CONFIG,
) -> ttnn.Tensor:
    """A copy on every chip. The host makes its tiles: to tilize on a chip would leave a hole in L1 above it."""
    host = host_tensor(tensor, mesh_device, dtype, layout)
    return ttnn.to_device(host, mesh_device, memory_config=memory_config)


def shard(
    tensor: torch.Tensor, mesh_device: ttnn.MeshDevice, dim: int, dtype: ttnn.DataType = ttnn.bfloat16
) -> ttnn.Tensor:
    """The tensor cut evenly along `dim` over the chips of a row, in tiles in DRAM."""
    host = host_tensor(tensor, mesh_device, dtype, ttnn.TILE_LAYOUT, dim)
    return ttnn.to_device(host, mesh_device, memory_config=ttnn.DRAM_MEMORY_CONFIG)


def host_tensor(
    tensor: torch.Tensor,
    mesh_device: ttnn.MeshDevice,
    dtype: ttnn.DataType,
    layout: ttnn.Layout,
    dim: Optional[int] = None,
) -> ttnn.Tensor:
    """`replicate`, or with a dim `shard`, on the host: for `ttnn.copy_host_to_device_tensor`."""
    mapper = ttnn.ReplicateTensorToMesh(mesh_device)
    if dim is not None:
        mapper = ttnn.ShardTensor2dMesh(mesh_device, tuple(mesh_device.shape), dims=(None, dim))
    return ttnn.from_torch(tensor, dtype=dtype, layout=layout, mesh_mapper=mapper)

"""Weights and torch tensors onto the mesh."""

from typing import Sequence

import torch
import ttnn

from models.demos.qwen25_7b.weights import Projection, Weight


def dtype_of(name: str) -> ttnn.DataType:
    """ttnn's dtype of a recipe's format name."""
    return getattr(ttnn, name)


def chips_in_row(mesh_device: ttnn.MeshDevice) -> int:
    """Chips that share a model: tp."""
    return mesh_device.shape[1]


def place(
    weight: Weight,
    mesh_device: ttnn.MeshDevice,
    format: str = "bfloat16",
    memory_config: ttnn.MemoryConfig = ttnn.DRAM_MEMORY_CONFIG,
    *,
    tiled: bool = True,
) -> ttnn.Tensor:
    """A weight onto the mesh, [1, 1, rows, columns] a chip: each chip of a row gets its part, every row the same.

    format: the recipe's name for it. Its pieces are tiled and packed on the host, or were when the tile cache was written.
    """
    host = weight.host(format, tiled=tiled)
    part = weight.parts[0]
    joined = on_rows(host, mesh_device, dim=3 - part.cut) if isinstance(part, Projection) else host[0]
    return ttnn.to_device(joined, mesh_device, memory_config=memory_config)


def on_rows(pieces: Sequence[ttnn.Tensor], mesh_device: ttnn.MeshDevice, dim: int) -> ttnn.Tensor:
    """Host tensors, one a chip of a row, as the one that ShardTensor2dMesh(dims=(None, dim)) would have cut into them."""
    rows, _ = mesh_device.shape
    host = ttnn.from_host_shards(list(pieces) * rows, mesh_device.shape)
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
    """The same tensor on every chip. Tiles are made on the host: made on a chip, what stays in L1 would lie below a hole."""
    host = host_replicated(tensor, mesh_device, dtype, layout)
    return ttnn.to_device(host, mesh_device, memory_config=memory_config)


def shard(
    tensor: torch.Tensor,
    mesh_device: ttnn.MeshDevice,
    dim: int,
    dtype: ttnn.DataType = ttnn.bfloat16,
    memory_config: ttnn.MemoryConfig = ttnn.DRAM_MEMORY_CONFIG,
) -> ttnn.Tensor:
    """`tensor` cut evenly along `dim` over the chips of a mesh row, in tiles; every row of the mesh holds the same."""
    return ttnn.from_torch(
        tensor, dtype=dtype, layout=ttnn.TILE_LAYOUT, device=mesh_device, memory_config=memory_config,
        mesh_mapper=ttnn.ShardTensor2dMesh(mesh_device, tuple(mesh_device.shape), dims=(None, dim)),
    )  # fmt: skip


def host_sharded(tensor: torch.Tensor, mesh_device: ttnn.MeshDevice, dim: int, dtype: ttnn.DataType) -> ttnn.Tensor:
    """The same on the host, for `ttnn.copy_host_to_device_tensor`."""
    mapper = ttnn.ShardTensor2dMesh(mesh_device, tuple(mesh_device.shape), dims=(None, dim))
    return ttnn.from_torch(tensor, dtype=dtype, layout=ttnn.TILE_LAYOUT, mesh_mapper=mapper)


def host_replicated(
    tensor: torch.Tensor,
    mesh_device: ttnn.MeshDevice,
    dtype: ttnn.DataType,
    layout: ttnn.Layout = ttnn.ROW_MAJOR_LAYOUT,
) -> ttnn.Tensor:
    """A host tensor that `ttnn.copy_host_to_device_tensor` can send to every chip."""
    return ttnn.from_torch(tensor, dtype=dtype, layout=layout, mesh_mapper=ttnn.ReplicateTensorToMesh(mesh_device))

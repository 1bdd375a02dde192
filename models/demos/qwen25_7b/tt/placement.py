"""Torch tensors onto the mesh."""

import torch
import ttnn


def dtype_of(name: str) -> ttnn.DataType:
    """ttnn's dtype of a recipe's format name."""
    return getattr(ttnn, name)


def chips_in_row(mesh_device: ttnn.MeshDevice) -> int:
    """Chips that share a model: tp."""
    return mesh_device.shape[1]


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


def host_replicated(
    tensor: torch.Tensor,
    mesh_device: ttnn.MeshDevice,
    dtype: ttnn.DataType,
    layout: ttnn.Layout = ttnn.ROW_MAJOR_LAYOUT,
) -> ttnn.Tensor:
    """A host tensor that `ttnn.copy_host_to_device_tensor` can send to every chip."""
    return ttnn.from_torch(tensor, dtype=dtype, layout=layout, mesh_mapper=ttnn.ReplicateTensorToMesh(mesh_device))

"""Torch tensors onto the mesh."""
import torch
import ttnn


def dtype_of(name: str) -> ttnn.DataType:
    """ttnn's dtype of a recipe's format name."""
    return getattr(ttnn, name)


def replicate(
    tensor: torch.Tensor,
    mesh_device: ttnn.MeshDevice,
    dtype: ttnn.DataType = ttnn.bfloat16,
    layout: ttnn.Layout = ttnn.TILE_LAYOUT,
    memory_config: ttnn.MemoryConfig = ttnn.DRAM_MEMORY_CONFIG,
) -> ttnn.Tensor:
    """The same tensor on every chip."""
    return ttnn.from_torch(
        tensor, dtype=dtype, layout=layout, device=mesh_device, memory_config=memory_config,
        mesh_mapper=ttnn.ReplicateTensorToMesh(mesh_device),
    )  # fmt: skip


def shard(
    tensor: torch.Tensor,
    mesh_device: ttnn.MeshDevice,
    dim: int,
    dtype: ttnn.DataType = ttnn.bfloat16,
    memory_config: ttnn.MemoryConfig = ttnn.DRAM_MEMORY_CONFIG,
) -> ttnn.Tensor:
    """`tensor` cut evenly along `dim` over the chips, in tiles."""
    return ttnn.from_torch(
        tensor, dtype=dtype, layout=ttnn.TILE_LAYOUT, device=mesh_device, memory_config=memory_config,
        mesh_mapper=ttnn.ShardTensorToMesh(mesh_device, dim=dim),
    )  # fmt: skip


def host_replicated(tensor: torch.Tensor, mesh_device: ttnn.MeshDevice, dtype: ttnn.DataType) -> ttnn.Tensor:
    """A row-major host tensor that `ttnn.copy_host_to_device_tensor` can send to every chip."""
    return ttnn.from_torch(
        tensor, dtype=dtype, layout=ttnn.ROW_MAJOR_LAYOUT, mesh_mapper=ttnn.ReplicateTensorToMesh(mesh_device)
    )

"""The contents of a replica's caches."""

import torch
import ttnn


def cache_tensors(replica) -> list[ttnn.Tensor]:
    """Keys and values of each layer."""
    return [tensor for cache in replica.caches for tensor in (cache.keys, cache.values)]


def read_caches(replica) -> torch.Tensor:
    """[keys and values of each layer, blocks, KV heads of all chips, tokens of a block, head_dim]

    The layers' caches have one format.
    """
    composer = ttnn.ConcatMeshToTensor(replica.mesh_device, dim=1)
    tensors = cache_tensors(replica)
    return torch.stack([ttnn.to_torch(tensor, mesh_composer=composer) for tensor in tensors])

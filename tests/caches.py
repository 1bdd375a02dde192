"""The contents of a replica's caches."""

import torch
import ttnn


def read_caches(replica) -> torch.Tensor:
    """[keys and values of each layer, blocks, KV heads of all chips, tokens of a block, head_dim]

    The layers' caches have one format.
    """
    composer = ttnn.ConcatMeshToTensor(replica.mesh_device, dim=1)
    tensors = (tensor for cache in replica.caches for tensor in (cache.keys, cache.values))
    return torch.stack([ttnn.to_torch(tensor, mesh_composer=composer) for tensor in tensors])

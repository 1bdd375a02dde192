"""A chip's shards on the host: read from a checkpoint's tensors, tiled and packed, when they are placed."""

from functools import partial
from typing import TYPE_CHECKING, Callable, Mapping, Protocol

import torch

from ..plans.slices import ReadTensor, WeightShard

if TYPE_CHECKING:
    import ttnn

# Gives a weight shard on the host, [1, 1, rows, columns], ready to be sent.
BuildShard = Callable[[WeightShard], "ttnn.Tensor"]


class TensorSource(Protocol):
    """Finds a tensor by its Hugging Face name. A Checkpoint is one."""

    def tensor(self, name: str) -> torch.Tensor: ...


def builder(source: TensorSource | Mapping[str, torch.Tensor]) -> BuildShard:
    """source: a Checkpoint, or a state dict."""
    return partial(build_shard, tensor=source.__getitem__ if isinstance(source, Mapping) else source.tensor)


def build_shard(shard: WeightShard, tensor: ReadTensor) -> "ttnn.Tensor":
    """Return the shard on the host, [1, 1, rows, columns], tiled and packed by ttnn's own code."""
    import ttnn  # here, since a checkpoint is opened before the backend of ttnn is chosen

    layout = ttnn.TILE_LAYOUT if shard.tiled else ttnn.ROW_MAJOR_LAYOUT
    return ttnn.from_torch(shard.slice.read(tensor)[None, None], dtype=getattr(ttnn, shard.format), layout=layout)

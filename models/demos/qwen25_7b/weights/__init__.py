"""From a Hugging Face checkpoint to each chip's slices."""

from .checkpoint import Checkpoint, CheckpointError
from .model_weights import (
    AttentionWeights,
    DirectBuilder,
    LayerWeights,
    MlpWeights,
    ModelWeights,
    ShardBuilder,
    StateDict,
    TensorSource,
    Weight,
    build_shard,
)
from .rotary_pairs import centered_pairs, key_divisors, to_half_split, to_interleaved
from .slices import Constant, KeyScaling, Projection, Table, TensorRange, WeightShard, WeightSlice

__all__ = [
    "AttentionWeights",
    "Checkpoint",
    "CheckpointError",
    "Constant",
    "DirectBuilder",
    "KeyScaling",
    "LayerWeights",
    "MlpWeights",
    "ModelWeights",
    "Projection",
    "ShardBuilder",
    "StateDict",
    "Table",
    "TensorRange",
    "TensorSource",
    "Weight",
    "WeightShard",
    "WeightSlice",
    "build_shard",
    "centered_pairs",
    "key_divisors",
    "to_half_split",
    "to_interleaved",
]

"""From a Hugging Face checkpoint to tensors that an even split gives to the chips."""

from .checkpoint import Checkpoint, CheckpointError
from .equalise import key_divisors
from .model_weights import AttentionWeights, LayerWeights, MlpWeights, ModelWeights, StateDict, TensorSource
from .transforms import to_half_split, to_interleaved

__all__ = [
    "AttentionWeights",
    "Checkpoint",
    "CheckpointError",
    "LayerWeights",
    "MlpWeights",
    "ModelWeights",
    "StateDict",
    "TensorSource",
    "key_divisors",
    "to_half_split",
    "to_interleaved",
]

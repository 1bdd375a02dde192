"""From a Hugging Face checkpoint to what each chip holds of it."""

from .checkpoint import Checkpoint, CheckpointError
from .equalise import key_divisors
from .model_weights import AttentionWeights, LayerWeights, MlpWeights, ModelWeights, StateDict
from .parts import Constant, Equalised, Piece, Projection, Table, Taken
from .rotary_pairs import to_half_split, to_interleaved
from .weight import Packing, PieceSource, TensorSource, Weight, packed

__all__ = [
    "AttentionWeights",
    "Checkpoint",
    "CheckpointError",
    "Constant",
    "Equalised",
    "LayerWeights",
    "MlpWeights",
    "ModelWeights",
    "Packing",
    "Piece",
    "PieceSource",
    "Projection",
    "StateDict",
    "Table",
    "Taken",
    "TensorSource",
    "Weight",
    "key_divisors",
    "packed",
    "to_half_split",
    "to_interleaved",
]

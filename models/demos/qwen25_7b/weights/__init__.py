"""From a Hugging Face checkpoint to what each chip holds of it."""

from .checkpoint import Checkpoint, CheckpointError
from .model_weights import AttentionWeights, LayerWeights, MlpWeights, ModelWeights, StateDict
from .parts import Constant, Piece, Projection, Table, Taken, to_half_split, to_interleaved
from .weight import Packing, PieceSource, TensorSource, Weight, packed

__all__ = [
    "AttentionWeights",
    "Checkpoint",
    "CheckpointError",
    "Constant",
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
    "packed",
    "to_half_split",
    "to_interleaved",
]

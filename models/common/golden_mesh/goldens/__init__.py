"""The torch meaning of every ttnn op that the golden mesh knows. Importing this package registers them all."""

from models.common.golden_mesh.goldens import (  # noqa: F401
    attention,
    attention_decode,
    collectives,
    creation,
    data_movement,
    eltwise_binary,
    eltwise_unary,
    embedding,
    heads,
    kv_cache,
    layout,
    matmul,
    normalization,
    reduction,
    rotary,
    sampling,
)
from models.common.golden_mesh.registry import GOLDENS

COUNT = len(GOLDENS)

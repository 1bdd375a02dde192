"""The torch meaning of every ttnn op that the golden mesh knows. Importing this package registers them all."""

from models.common.golden_mesh.goldens import (  # noqa: F401
    attention,
    attention_decode,
    attention_latent,
    attention_matmul,
    bits,
    collectives,
    creation,
    data_movement,
    eltwise_binary,
    eltwise_by_rule,
    eltwise_in_place,
    eltwise_several,
    eltwise_unary,
    embedding,
    gated,
    heads,
    heads_split,
    kv_cache,
    layout,
    mamba,
    matmul,
    normalization,
    normalization_channels,
    quantization,
    reduction,
    rotary,
    sampling,
    selection,
    softmax,
)
from models.common.golden_mesh.registry import GOLDENS

COUNT = len(GOLDENS)

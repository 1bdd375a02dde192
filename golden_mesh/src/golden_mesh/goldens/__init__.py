"""The torch meaning of every ttnn op that the golden mesh knows. Importing this package registers them all."""

from golden_mesh.goldens import (  # noqa: F401
    activations,
    attention,
    attention_decode,
    collectives,
    creation,
    data_movement,
    eltwise_binary,
    eltwise_unary,
    heads,
    kv_cache,
    layout,
    matmul,
    normalization,
    other_models,
    reduction,
    rotary,
    selection,
    softmax,
)
from golden_mesh.goldens.nan_signs import read_signs
from golden_mesh.hazards.values import watch
from golden_mesh.registry import GOLDENS

watch()
read_signs()
COUNT = len(GOLDENS)

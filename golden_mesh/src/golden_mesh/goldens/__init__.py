"""The torch meaning of every ttnn op that the golden mesh knows. Importing this package registers them all."""

from golden_mesh.goldens import (  # noqa: F401
    activations,
    attention,
    attention_decode,
    attention_variants,
    backward,
    batch_norm,
    collectives,
    conv,
    conv3d,
    conv_transpose,
    creation,
    data_movement,
    eltwise_binary,
    eltwise_in_place,
    eltwise_integer,
    eltwise_several,
    eltwise_unary,
    heads,
    kv_cache,
    layout,
    matmul,
    matmul_fused,
    moreh,
    normalization,
    pool,
    reduction,
    rotary,
    selection,
    softmax,
)
from golden_mesh.hazards.values import watch
from golden_mesh.registry import GOLDENS

watch()
COUNT = len(GOLDENS)

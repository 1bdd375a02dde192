"""Operations that this repository's models do not use: training, convolutions, pools, less common elementwise ones."""

from golden_mesh.goldens.other_models import (  # noqa: F401
    attention_variants,
    backward,
    batch_norm,
    conv,
    conv3d,
    conv_transpose,
    eltwise_in_place,
    eltwise_integer,
    eltwise_several,
    matmul_fused,
    moreh,
    pool,
)

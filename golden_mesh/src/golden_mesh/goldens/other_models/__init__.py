"""Operations that this repository's models do not use: training, convolutions, pools, less common elementwise ones."""

from golden_mesh.goldens.other_models import (  # noqa: F401
    attention_variants,
    backward,
    conv,
    conv3d,
    eltwise_in_place,
    eltwise_integer,
    eltwise_several,
    image_norms,
    matmul_fused,
    moreh,
    pool,
)

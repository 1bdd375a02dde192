"""Operations that this repository's models do not use: training, convolutions, pools, less common elementwise ones."""

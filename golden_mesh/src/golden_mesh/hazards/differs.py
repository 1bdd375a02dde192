"""Operations with values that differ from a chip's by more than rounding, for golden-mesh --doctor. HAZARDS.md has the
numbers.
"""

import re
from pathlib import Path

_BFLOAT16_DEST = (
    "with a bfloat16 dest and default sums up to 9e-3 (bfloat8_b 2.1e-2); with exact sums equal or nearly so"
)
_ORDER = "with a bfloat16 dest, the default, 1.5e-2: the library chooses the order of the sum"
DIFFERS = {
    "lgamma": "1.4e-2: another series on a chip",
    "multigammaln": "4e-3: a sum of four lgamma",
    "digamma": "below 0 a chip's kernel is wrong",
    **dict.fromkeys(("sin", "cos", "tan"), "beyond 1e7 a chip's results leave [-1, 1], up to infinity"),
    "hypot": "beyond 1.8e19 infinity on a chip, below 1e-19 0",
    "rms_norm": "without fp32_dest_acc_en 0 on a chip for a row with bfloat16's largest or lowest number",
    **dict.fromkeys(("remainder", "fmod"), "beyond a quotient of 2**22 another number on a chip"),
    "matmul": _BFLOAT16_DEST,
    "linear": _BFLOAT16_DEST,
    "scaled_dot_product_attention": _BFLOAT16_DEST,
    "scaled_dot_product_attention_decode": _BFLOAT16_DEST,
    "paged_scaled_dot_product_attention_decode": _BFLOAT16_DEST,
    "conv1d": _ORDER,
    "conv2d": _ORDER,
    "conv_transpose2d": _ORDER,
    "group_norm": "5e-3, gain 0.998: only the result is rounded",
    "batch_norm": "3e-3, gain 1.002: the batch's statistics are another sum",
    "embedding_bw": "3e-3: only the result is rounded",
    "topk": "without stable=True equal values have another order",
    "softmax": "with numeric_stable=False and scores above 88: infinity here, 0 on a chip",
}


def in_programs(paths: list[Path]) -> list[str]:
    """A line for each of these operations that a program's text names after "ttnn."."""
    text = "\n".join(path.read_text() for path in paths)
    used = {name.split(".")[-1] for name in re.findall(r"ttnn\.([\w.]+)", text)}
    return [f"    ttnn {name}: {why}" for name, why in DIFFERS.items() if name in used]

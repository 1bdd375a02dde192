"""Hazards that show in the values of a call: goldens of floats whose kernels have other values for NaN and infinity."""

import math

import torch

from golden_mesh.hazards import meet
from golden_mesh.registry import Golden, wrap

_FUNCTIONS = (
    "addcdiv addcmul div_no_nan ldexp lerp nextafter normalize_global normalize_hw polygamma snake_beta tan "
    "transformer.chunked_scaled_dot_product_attention transformer.scaled_dot_product_attention"
).split()


def _is_special(value) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_floating_point() and not math.isfinite(value.sum()) and not value.isfinite().all()
    return isinstance(value, float) and not math.isfinite(value)


def note_special(op: str, *operands) -> None:
    """Meet the hazard if an operand has a NaN or an infinity."""
    if any(map(_is_special, operands)):
        meet("NaN and infinity in a function", op, "NaN or infinity among its values")


def _noting(golden: Golden, **arguments) -> object:
    if arguments.get("is_causal") is not False:  # attention without a causal mask is the chip's
        note_special(golden.name, *(value for name, value in arguments.items() if name != "attn_mask"))
    return golden.function(**arguments)


def watch() -> None:
    """Let the goldens of these functions note special values."""
    wrap(_FUNCTIONS, _noting)

"""Whole numbers for real ones: q = round(x / scale) + zero point, by tensor or, along an axis, by channel."""

import torch

from models.common.golden_mesh.registry import golden

Parameter = "torch.Tensor | float | int"


def _along(parameter: Parameter, x: torch.Tensor, axis: int | None) -> Parameter:
    """A scale or zero point as it meets x: one number, or one for each place along the axis."""
    if not isinstance(parameter, torch.Tensor):
        return parameter
    if axis is None:
        return parameter.reshape(())
    return parameter.reshape(*(-1 if d == axis % x.dim() else 1 for d in range(x.dim()))).float()


@golden("ttnn.quantize")
def quantize(input_tensor, scale, zero_point, *, axis=None, dtype=None):
    scale, zero_point = (_along(p, input_tensor, axis) for p in (scale, zero_point))
    return torch.round(input_tensor.float() / scale + zero_point)


@golden("ttnn.dequantize")
def dequantize(input_tensor, scale, zero_point, *, axis=None, dtype=None):
    scale, zero_point = (_along(p, input_tensor, axis) for p in (scale, zero_point))
    return (input_tensor.float() - zero_point) * scale


@golden("ttnn.requantize")
def requantize(input_tensor, in_scale, in_zero_point, out_scale, out_zero_point, *, axis=None, dtype=None):
    """From one scale and zero point to another."""
    in_scale, in_zero_point, out_scale, out_zero_point = (
        _along(p, input_tensor, axis) for p in (in_scale, in_zero_point, out_scale, out_zero_point)
    )
    return torch.round((input_tensor.float() - in_zero_point) * (in_scale / out_scale) + out_zero_point)

"""Bit operations on integers, and quantization: q = round(x / scale) + zero point.

Quantization works for a whole tensor or, along an axis, for each channel.

torch's int32 holds uint16, and its int64 holds uint32. The packer cuts off the other bits. A shift by 32
places or more, or by a negative number, gives zero.
"""

from functools import partial
from typing import Callable

import torch
import ttnn

from golden_mesh.arithmetic import engine, special
from golden_mesh.arithmetic.packer import pack
from golden_mesh.errors import GoldenError
from golden_mesh.goldens.eltwise_binary import Operand, binary_of_numbers, compute
from golden_mesh.registry import golden, golden_table

BITS = 32
_CUT = (1 << BITS) - 1


def _shifted(shift: Callable, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    valid = (places >= 0) & (places < BITS)
    return torch.where(valid, shift(x.long(), torch.where(valid, places, 0).long()), 0).to(x.dtype)  # wraps round


_ROWS = {
    "ttnn.bitwise_and": torch.bitwise_and,
    "ttnn.bitwise_or": torch.bitwise_or,
    "ttnn.bitwise_xor": torch.bitwise_xor,
    "ttnn.bitwise_left_shift ttnn.logical_left_shift": partial(_shifted, torch.bitwise_left_shift),
    "ttnn.bitwise_right_shift": partial(_shifted, torch.bitwise_right_shift),  # the sign fills the places
    # fills with zeros, also for a negative number
    "ttnn.logical_right_shift": lambda x, places: (
        _shifted(torch.bitwise_right_shift, x.long() & _CUT, places).int().to(x.dtype)
    ),
}
golden_table({names: binary_of_numbers(function) for names, function in _ROWS.items()}, passes=compute)


# dtype -> the torch dtype that reads its bits
_WIDTH = dict.fromkeys(("BFLOAT16", "UINT16"), torch.int16) | dict.fromkeys(("FLOAT32", "INT32", "UINT32"), torch.int32)
_FLOATS = {"BFLOAT16": torch.bfloat16, "FLOAT32": torch.float32}


@golden("ttnn.bitcast")
def bitcast(input_tensor, dtype, dtypes):
    """Return the tensor's bits read as another dtype."""
    source, target = dtypes["input_tensor"].name, dtype.name
    if _WIDTH.get(source) is None or _WIDTH.get(source) != _WIDTH.get(target):
        raise GoldenError(f"ttnn.bitcast of {source} to {target} has no golden")
    bits = input_tensor if source in _FLOATS else input_tensor.long().to(_WIDTH[source])  # wraps round
    bits = bits.view(_WIDTH[source])
    if target not in _FLOATS:
        return bits
    values = special.normal(special.without_nan(bits.view(_FLOATS[target])))  # dest has no denormals and no NaN
    through_source = target == "FLOAT32" and source not in _FLOATS  # it has 11 bits
    return engine.keep(values, engine.SRC_B) if through_source else values


def _along(parameter: Operand, x: torch.Tensor, axis: int | None) -> Operand:
    """A scale or zero point as it broadcasts to x: a number, or a number for each place along the axis."""
    if not isinstance(parameter, torch.Tensor):
        return parameter
    if axis is None:
        return parameter.reshape(())
    return parameter.reshape(*(-1 if d == axis % x.dim() else 1 for d in range(x.dim()))).float()


@golden("ttnn.quantize")
def quantize(input_tensor, scale, zero_point, axis, out):
    """With a zero point in a tensor: ttnn's div and add, cut to a whole number. Else one op."""
    whole = not isinstance(zero_point, torch.Tensor)
    scale, zero_point = (_along(p, input_tensor, axis) for p in (scale, zero_point))
    if whole:
        return _saturated(input_tensor.double() * (1 / torch.as_tensor(scale).float()).double() + zero_point, out.dtype)
    dtype = ttnn.float32 if input_tensor.dtype == torch.float32 else ttnn.bfloat16
    quotient = pack(compute(torch.div, input_tensor, scale, dtype), dtype)
    return compute(torch.add, quotient, pack(zero_point.float(), dtype), dtype)


def _saturated(x: torch.Tensor, dtype: ttnn.DataType) -> torch.Tensor:
    """The nearest whole number, ties away from zero, that the vector unit's eight bits hold."""
    nearest = torch.copysign(torch.floor(x.float().abs() + 0.5), x)
    return nearest.clamp(-127, 127) if dtype == ttnn.int32 else nearest


@golden("ttnn.dequantize")
def dequantize(input_tensor, scale, zero_point, axis):
    scale, zero_point = (_along(p, input_tensor, axis) for p in (scale, zero_point))
    return (input_tensor.float() - zero_point) * scale


@golden("ttnn.requantize")
def requantize(input_tensor, in_scale, in_zero_point, out_scale, out_zero_point, axis, out):
    """From one scale and zero point to another."""
    numbers = not any(isinstance(p, torch.Tensor) for p in (in_scale, in_zero_point, out_scale, out_zero_point))
    in_scale, in_zero_point, out_scale, out_zero_point = (
        _along(p, input_tensor, axis) for p in (in_scale, in_zero_point, out_scale, out_zero_point)
    )
    moved = (input_tensor.double() - in_zero_point) * (in_scale / out_scale) + out_zero_point
    return _saturated(moved, out.dtype) if numbers else moved.float()

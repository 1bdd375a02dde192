"""The packer: from dest to the format of the tensor that an op writes.

- bfloat16: rounds to nearest, ties away from zero. NaN becomes infinity.
- bfloat8_b: rounds twice, ties away from zero both times. First each value alone is rounded to 7 significant
  bits. Then a block of 16 is rounded to 7 bits below the largest value's power of two.
- Mean effect of bfloat8_b: bfloat16 values come out 0.53 % larger, and float32 values 0.26 % larger.
- bfloat4_b: as bfloat8_b, then all but the first 3 bits are cut off: 14 % smaller in the mean.
- Other dtypes: as ttnn's host packing (rounding.py).

Only ttnn.typecast packs in another way (`typecast`): it does not round single values first.
"""

import math

import torch
import ttnn

from golden_mesh.arithmetic.aligned import power
from golden_mesh.arithmetic.engine import BFLOAT16, keep, round_away, to_bfloat16
from golden_mesh.arithmetic.parts import constant, in_parts
from golden_mesh.arithmetic.plain import in_float32, same
from golden_mesh.rounding import BLOCK, round_to

BLOCK_FLOATS = frozenset({ttnn.bfloat8_b, ttnn.bfloat4_b})


def _unrounded(values: torch.Tensor, dtype: ttnn.DataType) -> torch.Tensor:
    if "INT" in dtype.name:
        return round_to(values, dtype)
    return values if values.is_floating_point() else values.float()


# Moves only ties away from zero: a value of 8 bits that is no tie is further than this from a tie.
_AWAY = 1 + 2.0**-12
_ONE = constant(1)


@in_float32(_unrounded)
def pack(values: torch.Tensor, dtype: ttnn.DataType) -> torch.Tensor:
    """Return `values`, the result of an op, as a tensor of `dtype` holds them. `round_to` lists the torch dtypes."""
    if dtype == ttnn.bfloat16 and values.dtype == torch.bfloat16:
        return values
    if values.numel() > 1 and not any(values.stride()):  # one value, expanded: stays one value
        return pack(values[(0,) * values.dim()], dtype).expand(values.shape)
    if dtype == ttnn.bfloat16 and values.dtype == torch.float32:
        return in_parts(_to_bfloat16, values)
    if dtype not in BLOCK_FLOATS:
        return round_to(values, dtype)
    packed = _block(round_away(nan_to_infinity(values.float()), 7))
    return packed if dtype == ttnn.bfloat8_b else _cut_to_four_bits(packed)


def pack_padded(values: torch.Tensor, dtype: ttnn.DataType, padding: float) -> torch.Tensor:
    """Return block floats whose last block has `padding` beside the values."""
    width = values.shape[-1]
    return pack(torch.nn.functional.pad(values.float(), (0, -width % BLOCK), value=padding), dtype)[..., :width]


def _to_bfloat16(values: torch.Tensor) -> torch.Tensor:
    if math.isfinite(values.sum()):  # with a last bit of 1 no value is a tie, but infinity is NaN
        return (values.contiguous().view(torch.int32) | _ONE).view(torch.float32).bfloat16()
    return to_bfloat16(nan_to_infinity(values)).bfloat16()


@in_float32(same)
def nan_to_infinity(values: torch.Tensor) -> torch.Tensor:
    """Return `values` with infinity in place of NaN, as the packer writes it in bfloat16."""
    if not math.isnan(values.sum()):  # one cheap pass: infinities of both signs also give NaN
        return values
    return values.masked_fill(values.isnan(), torch.inf)


@in_float32(_unrounded)
def typecast(values: torch.Tensor, dtype: ttnn.DataType) -> torch.Tensor:
    """Return the ttnn.typecast of a tensor.

    To bfloat8_b, float32 is first cut to bfloat16, and an integer is rounded to it. The cut makes up for the ties that
    then go away from zero. To bfloat16 the vector unit rounds, ties to even. NaN becomes infinity.
    """
    if "INT" in dtype.name:
        return _to_integer(values.double(), dtype)
    values = nan_to_infinity(values) if values.is_floating_point() else values
    if dtype == ttnn.bfloat8_b:
        first = keep if values.is_floating_point() else round_away
        return _block(first(values.float(), BFLOAT16))
    return round_to(values, dtype) if dtype == ttnn.bfloat16 else pack(values, dtype)


# Values beyond these are the nearest of them.
_RANGES = {"UINT16": (0, 2**16 - 1), "UINT32": (0, 2**32 - 1), "INT32": (-(2**31), 2**31 - 1)}


def _to_integer(x: torch.Tensor, dtype: ttnn.DataType) -> torch.Tensor:
    """Return the int64 to which the vector unit casts (ckernel_sfpu_typecast.h). NaN counts as infinity.

    It cuts floats towards zero. For uint16 it rounds to the nearest, halves up. For uint8 it keeps the last eight bits,
    and values of 2**31 or more are 0.
    """
    if dtype == ttnn.uint8:
        return torch.where(x.abs() < 2.0**31, x, 0).long() & 0xFF
    x = torch.floor(x + 0.5) if dtype == ttnn.uint16 else x
    return x.nan_to_num(torch.inf).clamp(*_RANGES[dtype.name]).long()


def _block(values: torch.Tensor) -> torch.Tensor:
    """Return float32 values of at most 8 significant bits in bfloat8_b, ties away from zero."""
    return round_to(values * _AWAY, ttnn.bfloat8_b)


def _cut_to_four_bits(values: torch.Tensor) -> torch.Tensor:
    """Return bfloat8_b values in bfloat4_b. The largest value of each block has its first bit set."""
    width = values.shape[-1]
    blocks = torch.nn.functional.pad(values.float(), (0, -width % BLOCK)).unflatten(-1, (-1, BLOCK))
    largest = blocks.abs().amax(-1, keepdim=True)
    step = power(largest) / 4  # 3 bits: 1, 1/2 and 1/4 of its power of two
    cut = torch.trunc(blocks / step.clamp(min=torch.finfo(torch.float32).tiny)).add_(0) * step  # no zero has a sign
    cut = torch.where(largest.isinf(), blocks, cut)  # beside an infinity are zeros
    return cut.flatten(-2)[..., :width].bfloat16()

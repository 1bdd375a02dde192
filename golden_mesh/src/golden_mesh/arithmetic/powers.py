"""Powers of floats as the vector unit computes them, 2 ** (exponent * log2(base)), with its infinities and NaNs.

- A bfloat16 dest: a cubic for the logarithm and a product of lines for the power (ckernel_sfpu_binary_pow.h, exp_21f).
- A float32 dest: right to the last bits for numbers.

A NaN of a bfloat16 dest is infinity. A negative base has a power only for whole exponents up to 32767.
"""

import torch

from golden_mesh.arithmetic.parts import constant
from golden_mesh.arithmetic.plain import in_float32
from golden_mesh.arithmetic.special import flushed, is_negative, on_blackhole
from golden_mesh.arithmetic.steps import EXPONENT, FRACTION, ROUGH_LOG, multiply_add, polynomial

_INVERSE_LN2, _LEAST, _ONE = constant(1.442695), constant(-127.0), float(127 << 23)
_SLOPE, _FIRST, _SECOND = constant(0.40196114e-7), 0xF94EE7, 0x560E
_MOST, _LARGEST = 32767, (1 << 31) - 1
_TOO_LARGE = 2.0**116  # times 2**12 + 1, which splits an exponent, it overflows


def _float(bits: torch.Tensor) -> torch.Tensor:
    return bits.int().view(torch.float32)


def _whole(x: torch.Tensor) -> torch.Tensor:
    """Positive float32, cut to int32. A larger one and NaN are the largest."""
    return x.double().nan_to_num(_LARGEST).clamp(max=_LARGEST).long()


def _of_sign(power: torch.Tensor, base: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """Give a power of |base| the sign of a negative base's, or make it NaN."""
    whole = exponent.nan_to_num(_MOST).round().clamp(-_MOST, _MOST) + 0.0
    signed = torch.where(whole.int() & 1 == 1, -power.abs(), power.abs())
    exists = whole.view(torch.int32) == exponent.view(torch.int32)
    return torch.where(is_negative(base), torch.where(exists, signed, torch.nan), power)


@in_float32(torch.pow)
def narrow(base: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """base ** exponent of float32 tensors, as a bfloat16 dest has it."""
    base, exponent = (x.contiguous() for x in torch.broadcast_tensors(base, exponent))
    bits = base.abs().view(torch.int32)
    x = _float(bits & FRACTION | 127 << 23)
    logarithm = multiply_add(polynomial(x, ROUGH_LOG), _INVERSE_LN2, (bits >> 23) - 127)
    scaled = flushed(flushed(exponent) * logarithm)
    negative_nan = (is_negative(exponent) ^ is_negative(logarithm)) & (not on_blackhole())
    below = torch.where(scaled.isnan(), negative_nan, scaled < _LEAST)
    scaled = torch.where(below, _LEAST, scaled)
    fixed = scaled.view(torch.int32)
    finite = (scaled != 0) & (fixed & EXPONENT != EXPONENT)
    moved = _float(fixed & ~EXPONENT | (fixed + (23 << 23)) & EXPONENT)  # times 2**23; the exponent wraps round
    bits = _whole(flushed(torch.where(finite, moved, scaled) + _ONE))
    rest = bits & FRACTION
    mantissa = _whole(flushed(flushed(_SLOPE * (_FIRST + rest).float()) * (_SECOND + rest).float()))
    power = _float(mantissa & FRACTION | bits & EXPONENT)
    power = _of_sign(power, base, exponent)
    of_zero = torch.where(is_negative(exponent), torch.nan, 0.0)
    power = torch.where((base.abs().view(torch.int32) == 0) & (exponent.view(torch.int32) != 0), of_zero, power)
    return flushed(torch.where(power.isnan(), torch.copysign(torch.full((), torch.inf), power), power))


@in_float32(torch.pow)
def wide(base: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """base ** exponent of float32 tensors, as a float32 dest has it. The logarithm of infinity is 128."""
    base, exponent = (x.contiguous() for x in torch.broadcast_tensors(base, exponent))
    infinite = torch.where(base.isnan(), 1.5, 1.0).double() * 2.0**128
    size = torch.where(base.isfinite(), base.abs().double(), infinite)
    power = flushed(torch.pow(size, exponent.double()).float())
    if on_blackhole():
        power = torch.where(exponent.abs() < _TOO_LARGE, power, torch.inf)
    else:
        grows = (size < 0.5**0.5) ^ (exponent == -torch.inf) ^ exponent.isnan()
        power = torch.where(exponent.isfinite(), power, torch.where(grows, torch.inf, 0.0))
    power = _of_sign(power, base, exponent.abs())
    of_zero = torch.where(exponent < 0, torch.inf, 0.0)
    odd = is_negative(base) & (exponent.abs() <= _MOST) & (exponent.abs() % 2 == 1)
    of_zero = torch.where(exponent.isnan(), torch.nan, torch.where(odd, -of_zero, of_zero))
    return torch.where(base == 0, torch.where(exponent == 0, 1.0, of_zero), power)

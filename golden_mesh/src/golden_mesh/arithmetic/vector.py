"""The vector unit's exp, sigmoid and silu, as the kernels compute them.

With a bfloat16 dest the kernels take a shorter exp and a shorter reciprocal: up to 12 % of their bfloat16 results
differ from the rounded function by a unit in the last place. A bfloat16 has 65,536 values, so these functions are
tables. With a float32 dest, exp is torch's. The vector unit's other functions are torch's own, rounded to nearest even.

The vector unit multiplies and adds with one rounding (`_multiply_add`).
"""

from functools import cache
from typing import Callable

import torch

from golden_mesh.arithmetic.plain import in_float32

# The kernels' constants (ckernel_sfpu_exp.h): 2**8 / ln 2, and 127 * 2**8 less a term that makes the mean error small.
_SLOPE, _OFFSET = 256 / 0.6931471805599453, 32500.818359375
_LEAST, _SMALLEST = -87.33, 1.19e-38  # exp(_LEAST) is a normal float32 and below _SMALLEST

# 1 / ln 2, and a parabola that is 2**(x / 2**23) for x from 0 to 2**23 (ckernel_sfpu_exp.h).
_INVERSE_LN2, _SQUARE, _LINEAR = 1.4426950216293334961, 4.791750143340323e-15, 7.839635491371155e-08
_CONSTANT = 1.0017248
_CONSTANT_OF_EXP = 1.001953125  # ttnn.exp loads it as a float16
_RECIPROCAL = (0.3232325017452239990234375, 1.4545459747314453125, 2.121212482452392578125)
_EXPONENT, _FRACTION, _HIDDEN_ONE = 0xFF << 23, 0x7FFFFF, 1 << 23


@in_float32(lambda x, scale, *, approximate: torch.exp(x * scale))
def exp(x: torch.Tensor, scale: float, *, approximate: bool) -> torch.Tensor:
    """Return exp(x * scale) of float32 x <= 0, as a float32 dest holds it.

    The approximate form (Schraudolph's) writes x * scale / ln 2, with eight bits behind the point, into a
    float's bits. It is a straight line between two powers of two: 2.2 % too small at 0, within 3 % elsewhere.
    A result below the smallest power comes out negative, and the packer makes it zero.
    """
    if not approximate:
        # A denormal result becomes zero, as on chips. Torch takes ten times as long for denormals and for smaller results.
        return torch.threshold_((x * scale).clamp_(min=_LEAST).exp_(), _SMALLEST, 0)
    code = x.mul(_SLOPE * scale).add_(_OFFSET).round_().clamp_(min=0).int()
    return code.bitwise_left_shift_(15).view(torch.float32)


def in_bfloat16_dest(name: str) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Return the kernel of a UnaryOpType's name for a bfloat16 dest: bfloat16 -> bfloat16. None: there is none here."""
    return _look_up(name) if name in _KERNELS else None


def _look_up(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    def function(x: torch.Tensor) -> torch.Tensor:
        codes = x.contiguous().view(torch.int16).flatten().to(torch.int32).bitwise_and_(0xFFFF)
        return _table(name).index_select(0, codes).view(x.shape)

    return function


@cache
def _table(name: str) -> torch.Tensor:
    """The function's values of all bfloat16, by their codes, [65536]."""
    x = torch.arange(1 << 16, dtype=torch.int32).bitwise_left_shift(16).view(torch.float32)
    return torch.where(x.isnan(), torch.nan, _KERNELS[name](x)).bfloat16()


def _exp(x: torch.Tensor, constant: float = _CONSTANT) -> torch.Tensor:
    """exp_21f: the whole part of x / ln 2 is the exponent, a parabola of the rest the mantissa."""
    power = _multiply_add(x, _INVERSE_LN2, 127.0).clamp(0, 255)
    bits = power.view(torch.int32)
    exponent = (bits >> 23) - 127
    fixed = ((bits & _FRACTION) | _HIDDEN_ONE).long()  # 23 bits behind the point
    fixed = torch.where(exponent < 0, fixed >> (-exponent).clamp(0, 31), fixed << exponent.clamp(0))
    rest = (fixed & _FRACTION).float()
    mantissa = _multiply_add(_multiply_add(rest, _SQUARE, _LINEAR), rest, constant)
    result = (mantissa.view(torch.int32) & ~_EXPONENT) | (fixed.int() & _EXPONENT)
    result = result.view(torch.float32)
    result = torch.where(power < 1, 0, result)  # chips have no denormals
    return torch.where(power == 255, torch.inf, result)


def _reciprocal(x: torch.Tensor) -> torch.Tensor:
    """1 / x of x >= 1: a parabola of the mantissa and one step of Newton's method."""
    bits = x.view(torch.int32)
    mantissa = ((bits & _FRACTION) | (127 << 23)).view(torch.float32)
    scale = (~bits & _EXPONENT).view(torch.float32) * 0.5
    square, linear, constant = _RECIPROCAL
    guess = _multiply_add(_multiply_add(-mantissa, square, linear), -mantissa, constant)
    rest = _multiply_add(-mantissa, guess, 1.0)
    return _multiply_add(guess, rest, guess) * scale


def _sigmoid(x: torch.Tensor) -> torch.Tensor:
    return _reciprocal(1 + _exp(-x))


def _multiply_add(a: torch.Tensor, b, c) -> torch.Tensor:
    """a * b + c of float32 tensors and numbers, rounded once."""
    b, c = (torch.as_tensor(x, dtype=torch.float32) for x in (b, c))
    return (a.double() * b.double() + c.double()).float()


_KERNELS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "EXP": lambda x: _exp(x, _CONSTANT_OF_EXP),
    "SIGMOID": _sigmoid,
    "SILU": lambda x: x * _sigmoid(x),
}

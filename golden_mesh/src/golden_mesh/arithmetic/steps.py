"""The vector unit's steps, of which kernels are made: its multiply-add; exp, 1 / x and logarithms of a bfloat16 dest.

Of a number 2**k * t the kernels' logarithms take k * ln 2 and a cubic of t: float32 -> float32, not rounded yet.
"""

import torch

from golden_mesh.arithmetic.engine import BFLOAT16, keep
from golden_mesh.arithmetic.parts import constant
from golden_mesh.arithmetic.plain import in_float32
from golden_mesh.arithmetic.special import flushed, is_negative, on_blackhole

# 1 / ln 2, and a parabola that is 2**(x / 2**23) for x from 0 to 2**23 (ckernel_sfpu_exp.h).
INVERSE_LN2, _SQUARE, _LINEAR = 1.4426950216293334961, 4.791750143340323e-15, 7.839635491371155e-08
_CONSTANT = 1.0017248
_RECIPROCAL = (0.3232325017452239990234375, 1.4545459747314453125, 2.121212482452392578125)
EXPONENT, FRACTION = 0xFF << 23, 0x7FFFFF
_LN2, _LOG2_E, _LOG10_E = 0.69314718, 1.442695041, 0.4342944819
_STEP = 2.0**-23  # of k as a float's bits hold it
# Of t - 1 for t from 0.75 to 1.5: (ln t - (t - 1)) / (t - 1)**2 (ckernel_sfpu_log.h).
_LOG = (-0.50097656, 0.3635254, -0.25)
_LOG1P_UP_TO_1 = (-0.48878586, 0.257131, -0.07519799)  # the same (ckernel_sfpu_logaddexp.h)
_THREE_QUARTERS, _ONE, _FOUR = constant(0x3F400000), constant(0x3F800000), constant(0x40800000)
# ln t for t from 1 to 2, and ln 2: of xlogy, and of lgamma and powers (tt-llk, ckernel_sfpu_log.h).
_CUBIC = (-1.49277612, 2.11263230, -0.72910421, 0.10968964)
ROUGH_LOG = (-1.5826656, 2.3098683, -0.86891425, 0.14171147)
_ROUGH_LN2 = 0.692871


def multiply_add(a: torch.Tensor, b, c) -> torch.Tensor:
    """a * b + c of float32 tensors and numbers, rounded once."""
    b, c = (torch.as_tensor(x, dtype=torch.float32) for x in (b, c))
    return (a.double() * b.double() + c.double()).float()


def polynomial(x: torch.Tensor, coefficients: tuple[float, ...]) -> torch.Tensor:
    """The polynomial of float32 x; the coefficients begin with the constant."""
    result = torch.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result = multiply_add(result, x, coefficient)
    return result


@in_float32(lambda x, constant=_CONSTANT: torch.exp(x))
def short_exp(x: torch.Tensor, constant: float = _CONSTANT) -> torch.Tensor:
    """exp_21f: the whole part of x / ln 2 is the exponent, a parabola of the rest the mantissa."""
    return power_of_two(multiply_add(x, INVERSE_LN2, 127.0), constant)


def power_of_two(power: torch.Tensor, constant: float = _CONSTANT) -> torch.Tensor:
    """2 ** (power - 127)"""
    power = power.clamp(0, 255)
    fixed = (power.double() * 2**23).long()  # 23 bits behind the point
    rest = (fixed & FRACTION).float()
    mantissa = multiply_add(multiply_add(rest, _SQUARE, _LINEAR), rest, constant)
    result = ((mantissa.view(torch.int32) & ~EXPONENT) | (fixed.int() & EXPONENT)).view(torch.float32)
    result = torch.where(power < 1, 0, result)  # chips have no denormals
    return torch.where(power == 255, torch.inf, result)


def reciprocal(x: torch.Tensor, steps: int = 1) -> torch.Tensor:
    """1 / x of x >= 0: a guess of the mantissa and steps of Newton's method.

    A Blackhole's guess is an instruction with eight bits, infinity for a subnormal number and 0 for a large one. A
    Wormhole's is a parabola, and it takes a step at least.
    """
    bits = x.view(torch.int32)
    if on_blackhole():
        mantissa = ((bits >> 16 & 0x7F) + 0.5) / 128
        guess = ((256 / (1 + mantissa)).round() / 128).ldexp(126 - (bits >> 23)).float()
        for _ in range(steps):
            guess = guess * -multiply_add(x, guess, -2.0)
        return torch.where(x < 2.0**-126, torch.inf, torch.where(x < 2.0**126, guess, 0))
    mantissa = ((bits & FRACTION) | (127 << 23)).view(torch.float32)
    scale = (~bits & EXPONENT).view(torch.float32) * 0.5
    square, linear, constant = _RECIPROCAL
    guess = multiply_add(multiply_add(-mantissa, square, linear), -mantissa, constant)
    for _ in range(max(1, steps)):
        guess = multiply_add(guess, multiply_add(-mantissa, guess, 1.0), guess)
    return guess * scale


def inverse_of(x: torch.Tensor) -> torch.Tensor:
    """1 / x of float32. NaN counts as infinity."""
    return torch.copysign(flushed(reciprocal(x.abs(), steps=2)), x)


def log(x: torch.Tensor) -> torch.Tensor:
    bits, rest = _split(x)
    return _special(multiply_add(bits.float(), _LN2 * _STEP, rest), x)


def log2(x: torch.Tensor) -> torch.Tensor:
    bits, rest = _split(x)
    return _special(multiply_add(bits.float(), _STEP, rest * _LOG2_E), x)


def log10(x: torch.Tensor) -> torch.Tensor:
    return log(x) * _LOG10_E


def log1p(x: torch.Tensor) -> torch.Tensor:
    bits = _bits_of_power(1 + x)
    power = multiply_add((_FOUR - bits).view(torch.float32), 0.25, -1.0)  # 2**-k - 1
    result = multiply_add(bits.float(), _LN2 * _STEP, _near_1(_less(x, bits) + power, _LOG))
    return _special(result, 1 + x)


def _split(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """k as a float's bits hold it, and ln t."""
    bits = _bits_of_power(x)
    return bits, _near_1(_less(x, bits) - 1, _LOG)


def _bits_of_power(x: torch.Tensor) -> torch.Tensor:
    return (x.view(torch.int32) - _THREE_QUARTERS) & ~FRACTION


def _less(x: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    return (x.view(torch.int32) - bits).view(torch.float32)


def _near_1(x: torch.Tensor, coefficients: tuple[float, ...]) -> torch.Tensor:
    """log(1 + x)"""
    return multiply_add(polynomial(x, coefficients), x * x, x)


def _special(result: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    result = torch.where(x == 0, -torch.inf, torch.where(x == torch.inf, x, result))
    return torch.where(x >= 0, result, torch.nan)


def _cubic(x: torch.Tensor, coefficients: tuple[float, ...], ln2: float) -> torch.Tensor:
    bits = x.view(torch.int32)
    mantissa = ((bits & FRACTION) | _ONE).view(torch.float32)
    result = multiply_add(((bits >> 23) - 127).float(), ln2, polynomial(mantissa, coefficients))
    return torch.where(x == 0, -torch.inf, result)


def rough_log(x: torch.Tensor) -> torch.Tensor:
    """ln x of x >= 0"""
    return _cubic(x, ROUGH_LOG, _ROUGH_LN2)


def times_log(a: torch.Tensor, b: torch.Tensor, narrow: bool) -> torch.Tensor:
    """a * ln b. A bfloat16 dest cuts the logarithm and the product."""
    a, b = flushed(a), flushed(b)
    logarithm = torch.where(is_negative(b) | b.isnan(), torch.nan, _cubic(b, _CUBIC, _LN2))
    return keep(a * keep(logarithm, BFLOAT16), BFLOAT16) if narrow else a * logarithm


def logaddexp(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a, b = flushed(a), flushed(b)
    return torch.maximum(a, b) + _near_1(short_exp(-_gap(a, b)).bfloat16().float(), _LOG1P_UP_TO_1)


def logaddexp2(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a, b = flushed(a), flushed(b)
    rest = _near_1(power_of_two(127 - _gap(a, b)).bfloat16().float(), _LOG1P_UP_TO_1)
    return multiply_add(rest, _LOG2_E, torch.maximum(a, b))


def _gap(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(a == b, 0, (a - b).abs())

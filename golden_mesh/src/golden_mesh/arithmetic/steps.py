"""The vector unit's steps, of which kernels are made: its multiply-add, exp and reciprocal of a bfloat16 dest."""

import torch

from golden_mesh.arithmetic import special
from golden_mesh.arithmetic.plain import in_float32

# 1 / ln 2, and a parabola that is 2**(x / 2**23) for x from 0 to 2**23 (ckernel_sfpu_exp.h).
INVERSE_LN2, _SQUARE, _LINEAR = 1.4426950216293334961, 4.791750143340323e-15, 7.839635491371155e-08
_CONSTANT = 1.0017248
_RECIPROCAL = (0.3232325017452239990234375, 1.4545459747314453125, 2.121212482452392578125)
EXPONENT, FRACTION = 0xFF << 23, 0x7FFFFF


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
    result = (mantissa.view(torch.int32) & ~EXPONENT) | (fixed.int() & EXPONENT)
    result = result.view(torch.float32)
    result = torch.where(power < 1, 0, result)  # chips have no denormals
    return torch.where(power == 255, torch.inf, result)


def reciprocal(x: torch.Tensor, steps: int = 1) -> torch.Tensor:
    """1 / x of x >= 0: a guess of the mantissa and steps of Newton's method.

    A Blackhole's guess is an instruction with eight bits, infinity for a subnormal number and 0 for a large one. A
    Wormhole's is a parabola, and it takes a step at least.
    """
    bits = x.view(torch.int32)
    if special.on_blackhole():
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
    return torch.copysign(special.flushed(reciprocal(x.abs(), steps=2)), x)

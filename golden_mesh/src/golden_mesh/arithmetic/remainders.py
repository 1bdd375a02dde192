"""Remainders of floats as the vector unit computes them: x - whole(x * (1 / y)) * y, each step rounded.

The tensors' form is ckernel_sfpu_binary_fmod.h and _remainder.h, the numbers' ckernel_sfpu_fmod.h and _remainder.h.
Where the quotient has more than 24 bits the result is far from the remainder, and may be larger than y.
A NaN that the vector unit makes has a sign, which the packer keeps in an infinity.
"""

import torch

from golden_mesh.arithmetic.engine import BFLOAT16, keep
from golden_mesh.arithmetic.parts import constant
from golden_mesh.arithmetic.plain import in_float32
from golden_mesh.arithmetic.special import flushed, infinite, is_negative, on_blackhole, signed_nan, signed_product
from golden_mesh.arithmetic.steps import inverse_of

_LAST_STEPS = 10  # y is subtracted as often at most
_WHOLE = 2.0**23  # from here on a float32 has no places behind the point


def _sum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a + b. The sign of a NaN is b's, but for a NaN as `a` alone."""
    result = flushed(a + b)
    of_a = a.isnan() & ~b.isnan()
    return torch.where(result.isnan(), signed_nan(torch.where(of_a, is_negative(a), is_negative(b))), result)


def _positive(x: torch.Tensor) -> torch.Tensor:
    return ~is_negative(x) & (x != 0)


@in_float32(lambda a, b, narrow: torch.fmod(a, b))
def by_trunc(a: torch.Tensor, b: torch.Tensor, narrow: bool) -> torch.Tensor:
    """The remainder of float32 a / b with the sign of a. narrow: for a bfloat16 dest."""
    is_zero = b.view(torch.int32) == 0  # a -0 is none
    a, b = flushed(a), flushed(b)
    whole = torch.trunc(signed_product(a, inverse_of(b))) + 0.0
    rest, size = _sum(signed_product(-whole, b), a), b.abs()
    less, more = _sum(-size, rest), _sum(size, rest)
    rest = torch.where(is_negative(_sum(rest.abs(), -size)), rest, torch.where(is_negative(rest), more, less))
    less, more = _sum(-size, rest), _sum(size, rest)
    below, above = ~is_negative(a) & is_negative(rest) & (rest != 0), is_negative(a) & _positive(rest)
    rest = torch.where(below, more, torch.where(above, less, rest))
    rest = rest.masked_fill(a.view(torch.int32) == b.view(torch.int32), 0).masked_fill(is_zero, torch.nan)
    return infinite(rest).bfloat16().float() if narrow else rest


@in_float32(lambda a, b, narrow: torch.remainder(a, b))
def by_floor(a: torch.Tensor, b: torch.Tensor, narrow: bool) -> torch.Tensor:
    """The remainder of float32 a / b with the sign of b. narrow: for a bfloat16 dest."""
    is_zero = b.view(torch.int32) == 0
    a, b = flushed(a), flushed(b)
    whole = torch.floor(signed_product(a, inverse_of(b))) + 0.0
    rest = _sum(signed_product(-whole, b), a)
    is_zero_rest = rest.view(torch.int32) == 0 if on_blackhole() else rest == 0  # there -0 is none
    rest = torch.where(~is_zero_rest & (is_negative(rest) ^ is_negative(b)), _sum(b, rest), rest)
    less = _sum(-b, rest)
    rest = torch.where(_positive(a) & _positive(b) & ~is_negative(less), less, rest)
    less = _sum(-b, rest)
    rest = torch.where(_positive(-a) & _positive(-b) & ~_positive(less), less, rest)
    rest = rest.masked_fill(is_zero, torch.nan)
    return infinite(rest) if narrow else rest


def _of_size(x: torch.Tensor, number: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return |x|, |x / number| and its whole part."""
    quotient = signed_product(x.abs(), flushed(1 / constant(number)).abs())
    return x.abs(), quotient, torch.trunc(quotient)


def _last_steps(rest: torch.Tensor, size: torch.Tensor, narrow: bool) -> torch.Tensor:
    if size == 0:
        rest = torch.full_like(rest, torch.nan)
    for _ in range(_LAST_STEPS):
        rest = torch.where(is_negative(rest - size), rest, _sum(-size, rest))
    rest = rest.masked_fill(rest.abs() == size, 0)
    return keep(infinite(rest), BFLOAT16) if narrow else rest


@in_float32(lambda x, number, narrow: torch.fmod(x, number))
def by_trunc_of_number(x: torch.Tensor, number: float, narrow: bool) -> torch.Tensor:
    """As `by_trunc`, of float32 x and a number."""
    x, divisor = flushed(x), constant(number).abs()
    size, quotient, whole = _of_size(x, number)
    whole = torch.where((quotient < _WHOLE) & (signed_product(whole, divisor) > size), whole - 1, whole)
    rest = _last_steps(torch.copysign(_sum(signed_product(-whole, divisor), size), x), divisor, narrow)
    if divisor == torch.inf and not on_blackhole():
        return torch.where(x.isfinite(), torch.copysign(divisor, x), rest)
    return rest


@in_float32(lambda x, number, narrow: torch.remainder(x, number))
def by_floor_of_number(x: torch.Tensor, number: float, narrow: bool) -> torch.Tensor:
    """As `by_floor`, of float32 x and a number."""
    x, divisor = flushed(x), constant(number)
    size, _, whole = _of_size(x, number)
    rest = _sum(signed_product(-whole, divisor.abs()), size)
    rest = torch.where(is_negative(x) & (rest != 0), _sum(-rest, divisor.abs()), rest)
    if number < 0:
        rest = torch.where(rest != 0, _sum(divisor, rest), rest)
    return _last_steps(torch.copysign(rest, divisor), divisor.abs(), narrow)

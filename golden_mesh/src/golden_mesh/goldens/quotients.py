"""Quotients, remainders and powers: of integers exact, of floats by powers.py and remainders.py."""

import math
from typing import Callable

import torch
import ttnn

from golden_mesh.arithmetic import powers, remainders, special
from golden_mesh.arithmetic.packer import BLOCK_FLOATS, pack
from golden_mesh.arithmetic.steps import inverse_of
from golden_mesh.hazards import meet


def repeated_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a * a, or a * a * a where b is 3. Each product is rounded, and a subnormal one is 0."""
    a = a.float()
    square = special.flushed(a * a)
    return special.flushed(square * a) if (b == 3).all() else square


def power_by_number(a: torch.Tensor, _, number: float, narrow: bool) -> torch.Tensor:
    """a ** number, which is not rounded to bfloat16. A negative power of 0 is NaN."""
    power = (powers.narrow if narrow else powers.wide)(a, torch.tensor(float(number)))
    return power.masked_fill(a == 0, torch.inf if narrow else torch.nan) if number < 0 else power


def power_of_number(number: float, exponent: torch.Tensor) -> torch.Tensor:
    """ttnn.rpow, too."""
    base = torch.tensor(float(number))
    if exponent.dtype == torch.bfloat16:
        return powers.narrow(base, exponent.float()).bfloat16()
    return powers.wide(base + 0.0, exponent)


def are_integers(*operands: torch.Tensor) -> bool:
    return not any(x.is_floating_point() for x in operands)


def _of_zero_itself(function: Callable, of_floats: Callable) -> Callable:
    """A remainder. The integer kernels leave an integer as it is where the divisor is 0."""

    def remainder(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if not are_integers(a, b):
            return of_floats(a, b, False)
        return torch.where(b == 0, a.long(), function(a.long(), b.long().masked_fill(b == 0, 1)))

    return remainder


remainder_by_floor = _of_zero_itself(torch.remainder, remainders.by_floor)
remainder_by_trunc = _of_zero_itself(torch.fmod, remainders.by_trunc)
_WHOLE = 1 << 24  # from here on float32 lacks odd numbers


def check_remainder(op: str, a: torch.Tensor, b) -> None:
    """Raise HazardError for integers by a float that float32 does not hold."""
    if isinstance(b, float) and not a.is_floating_point():
        largest = max(a.long().abs().max().item(), abs(b))
        if largest >= _WHOLE:
            meet("remainder of integers by a float", op, f"{largest}")


_OVER_ZERO = {0: 3, 1: -2045, 2: 63488, 1 << 31: 65534}  # |a| -> what the kernel makes of |a| / 0; else 65536


def whole_quotient(a: torch.Tensor, b: torch.Tensor, rounding_mode: str) -> torch.Tensor:
    """a / b of integers, exact for each b but 0 (ckernel_sfpu_div_int32_floor.h)."""
    a, b = a.long(), b.long()
    over_zero = torch.full_like(a, 1 << 16)
    for size, quotient in _OVER_ZERO.items():
        over_zero[a.abs() == size] = quotient
    over_zero = torch.where(a < 0, -over_zero - int(rounding_mode == "floor"), over_zero)
    return torch.where(b == 0, over_zero, torch.div(a, b.masked_fill(b == 0, 1), rounding_mode=rounding_mode))


_TOO_LARGE = 2.0**126  # its inverse is no normal number


def quotient_of_inverse(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a * (1 / b) of floats, float32, as a bfloat16 dest has it: 0 where 1 / b is too small a number."""
    a, b = special.flushed(a.float()), b.float()
    result = special.flushed(a / b)
    if math.isfinite(result.sum()) and b.abs().max() < _TOO_LARGE:
        return result
    result = special.infinite(special.signed_product(a, inverse_of(b)))
    return torch.where((b == 0) & ~b.signbit(), torch.copysign(torch.full_like(a, torch.inf), a), result)


def rounded_quotient(a: torch.Tensor, b: torch.Tensor, rounding: Callable, dtype) -> torch.Tensor:
    """The whole quotient of floats. dtype: in which the quotient waits to be rounded."""
    if dtype == ttnn.bfloat16:
        return rounding(quotient_of_inverse(a, b).bfloat16().float())
    found = special.normal(a / b)
    return rounding(pack(found.bfloat16().float(), dtype).float() if dtype in BLOCK_FLOATS else found)


def quotient(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a / b in float32. The kernel of integers reads a sign and 31 bits, in which -2**31 is a zero."""
    if not are_integers(a, b):
        return a / b
    a, b = (x.masked_fill(x == -1 << 31, 0).float() for x in (a, b))
    return a / b

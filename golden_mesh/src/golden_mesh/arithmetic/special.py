"""Infinity and NaN in the matrix engine, which knows neither.

The largest exponent is a power of two like the others there: infinity counts as 2**128, a NaN as 2**128 times its
mantissa. What reaches 2**128 in dest becomes infinity. So infinity less infinity is 0, a mean of infinities is finite,
and a product of infinities is lost in the phases after the first: their zeros have larger places than dest.
The largest value of a row is by the order of sign and magnitude: a positive NaN is above infinity.

Results without infinity and NaN are computed elsewhere, in fewer steps.
"""

import math
from functools import cache
from typing import Callable

import torch
import torch.nn.functional as F
import ttnn

TILE, HALF, GROUP = 32, 16, 8  # of the inner dim: a tile, an instruction, the products that are added first
MOST = 1 << 27  # products of one repair. Beyond, all phases of a product are one
_AT_ONCE = 1 << 18
_BIAS, _PLACES, _PLACES_OF_FLOAT32 = 127, 10, 23
_INFINITY = 2.0**128
_FULL, _ONE = 0xFF << 23, 1 << 23


def numbers(x: torch.Tensor) -> torch.Tensor:
    """Return float values as the matrix engine takes them, in float64, which holds 2**128."""
    x = x.float().contiguous()
    bits = x.view(torch.int32)
    beyond = (bits & _FULL) == _FULL
    return torch.where(beyond, (bits - _ONE).view(torch.float32).double() * 2, x.double())


def repaired(result: torch.Tensor, exact: Callable, *operands: torch.Tensor) -> torch.Tensor:
    """Write exact(*operands) over the elements of an elementwise float32 `result` that are infinite or NaN."""
    if math.isfinite(result.sum()):
        return result
    bad = ~result.isfinite()
    if bad.any():
        result[bad] = exact(*(x.float().expand(result.shape)[bad] for x in operands))
    return result


def total(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a + b of float32 values of eleven bits, elementwise, as a float32 dest holds it."""
    a, b = numbers(a), numbers(b)
    step = _power(torch.frexp(torch.maximum(a.abs(), b.abs())).exponent - 1 - _PLACES)
    return (_away(a / step) * step + _away(b / step) * step).float()


def _power(exponent: torch.Tensor) -> torch.Tensor:
    """Return 2**exponent in float64. torch.ldexp overflows with float32."""
    return (exponent.long() + 1023 << 52).view(torch.float64)


def _away(x: torch.Tensor) -> torch.Tensor:
    """Round to whole numbers, ties away from zero."""
    return torch.copysign(torch.floor(x.abs() + 0.5), x)


def repaired_product(
    result: torch.Tensor, a: torch.Tensor, b: torch.Tensor, kernel, block: int | None = None, biased: bool = False,
    by_faces: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Write the engine's own sums over the elements of result [..., M, N] = a [..., M, K] @ b [..., K, N] that are
    infinite or NaN.

    block, biased: as in product.py. None: one block. by_faces: as in `dots`.
    """
    if math.isfinite(result.sum()):
        return result
    shape, inner = result.shape[:-2], a.shape[-1]
    left, right = a.expand(*shape, *a.shape[-2:]), b.transpose(-1, -2)
    right = right.expand(*shape, *right.shape[-2:])
    repeats, first = _equal_to_the_row_above(left)  # as rows that nobody wrote
    *batch, row, column = (~result.isfinite() & ~repeats[..., None]).nonzero(as_tuple=True)
    if len(row) * inner > MOST:
        at = (*batch, row, column)
        result[at] = (numbers(left) @ numbers(right).transpose(-1, -2)).float()[at]
        row = row[:0]
    for at in torch.arange(len(row)).split(max(1, _AT_ONCE // inner)):
        of_batch = [x[at] for x in batch]
        operands = left[(*of_batch, row[at])].float(), right[(*of_batch, column[at])].float()
        result[(*of_batch, row[at], column[at])] = dots(*operands, kernel.phases, kernel.wide, block, biased, by_faces)
    return result.copy_(result.gather(-2, first[..., None].expand(result.shape))) if repeats.any() else result


def _equal_to_the_row_above(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which rows of x [..., M, K] equal the row above, bit by bit, and the first row of each run: [..., M]."""
    bits = x.contiguous().view(torch.int16 if x.element_size() == 2 else torch.int32)
    repeats = F.pad((bits[..., 1:, :] == bits[..., :-1, :]).all(-1), (1, 0))
    return repeats, torch.arange(x.shape[-2]).masked_fill(repeats, 0).cummax(-1).values


def dots(
    a: torch.Tensor, b: torch.Tensor, phases: int, wide: bool, block: int | None = None, biased: bool = False,
    by_faces: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Return the sums of a [n, K] (through SrcB) * b [n, K] (through SrcA) over K, float32 [n], as dest holds them.

    by_faces: all phases of one half of a tile come before the other half, as in sums of columns.
    """
    padding = -a.shape[1] % HALF
    a, b = (_fields(F.pad(x, (0, padding))) for x in (a, b))
    dest, in_l1 = torch.zeros(a[0].shape[0], dtype=torch.float64), None
    tiles = -(-a[0].shape[1] // TILE)
    for tile in range(tiles):
        if block and tile and tile % block == 0:
            in_l1 = dest if in_l1 is None else _sum_in_l1(in_l1, dest, wide)
            dest = in_l1 if tile + block >= tiles and not biased else torch.zeros_like(dest)
        order = [(phase, half) for phase in range(phases) for half in range(tile * TILE, (tile + 1) * TILE, HALF)]
        for phase, half in sorted(order, key=lambda step: step[1]) if by_faces else order:
            of_a, of_b = ([x[:, half : half + HALF] for x in operand] for operand in (a, b))
            if of_a[0].shape[1]:
                dest = _instruction(dest, of_a, of_b, phase, wide)
    return (dest if in_l1 is None or not biased else _sum_in_l1(in_l1, dest, wide)).float()


def _sum_in_l1(a: torch.Tensor, b: torch.Tensor, wide: bool) -> torch.Tensor:
    """The packer adds as float32 does, infinities too: their difference is a positive NaN."""
    result = a.float() + b.float()
    result = result if wide else result.bfloat16()
    return torch.where(result.isnan(), 1.5 * _INFINITY, numbers(result))


def _fields(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return sign, exponent (0: the value is 0) and the first eleven bits of float32 values."""
    bits = x.contiguous().view(torch.int32).long()
    return 1 - 2 * (bits < 0).long(), (bits >> 23) & 0xFF, (bits >> 13) & 0x3FF | 0x400


def _instruction(dest: torch.Tensor, a: list, b: list, phase: int, wide: bool) -> torch.Tensor:
    """Return dest [n] with the sum of the products of one phase added: two groups of eight, and dest."""
    last_of_a, last_of_b = phase >> 1, phase & 1
    first = ((a[2] & 15) << 3 if last_of_a else a[2] >> 4) * ((b[2] >> 1) & 31 if last_of_b else b[2] >> 6)
    exponent = a[1] + b[1] - _BIAS - 7 * last_of_a - 5 * last_of_b
    is_zero = (a[1] == 0) | (b[1] == 0)
    exponent = exponent.masked_fill(is_zero, 0).unflatten(1, (-1, GROUP))
    mantissa = (first * a[0] * b[0]).masked_fill(is_zero, 0).unflatten(1, (-1, GROUP)).double()
    largest = exponent.amax(-1)
    sums = _away(mantissa * _power(exponent - largest[..., None])).sum(-1).masked_fill(largest <= 0, 0)
    largest.clamp_(min=0)
    of_dest = (torch.frexp(dest).exponent + _BIAS - 1).masked_fill(dest == 0, 0).long()
    common = torch.maximum(largest.amax(-1), of_dest)
    places = _PLACES_OF_FLOAT32 if wide else _PLACES
    terms = torch.floor(sums * _power(largest - common[:, None] + places - _PLACES) + 0.5).sum(-1)
    terms += _away(dest * _power(_BIAS + places - common))
    mantissa, power = torch.frexp(terms)
    kept = 2.0 ** (24 if wide else 8)
    held = _away(mantissa * kept) / kept * _power(power + common - _BIAS - places)
    return torch.where(held.abs() >= _INFINITY, held.sign() * _INFINITY, held)


def running_sum(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the sum of float values along dim, which stays. Dest takes a term after the other."""
    held = torch.zeros(())
    for term in x.split(1, dim):
        held = (numbers(held) + numbers(term)).float()
    return held


def largest(x: torch.Tensor, dim: int | tuple[int, ...] = -1, keepdim: bool = True) -> torch.Tensor:
    """Return the largest of float values along dim."""
    found = x.amax(dim, keepdim)
    if not math.isnan(found.sum()):
        return found
    bits = x.float().contiguous().view(torch.int32)
    bits = bits.where(bits >= 0, bits ^ 0x7FFFFFFF).amax(dim, keepdim)
    return bits.where(bits >= 0, bits ^ 0x7FFFFFFF).view(torch.float32).to(x.dtype)


def without_nan(x: torch.Tensor) -> torch.Tensor:
    """Return float `x` as the packer writes it: with infinity of its sign in place of each NaN."""
    if not math.isnan(x.sum()):
        return x
    return torch.where(x.isnan(), torch.copysign(torch.tensor(torch.inf, dtype=x.dtype), x), x)


def product_without_nan(product: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the vector unit's bfloat16 a * b as the packer writes it: infinity with the product's sign (on a Blackhole
    positive) in place of NaN, and 0 if a factor is +0.
    """
    if not math.isnan(product.sum()):
        return product
    infinity = torch.where(a.signbit() ^ b.signbit(), -torch.inf, torch.inf).to(product.dtype)
    infinity = infinity.abs() if on_blackhole() else infinity
    infinity = torch.where(((a == 0) & ~a.signbit()) | ((b == 0) & ~b.signbit()), 0, infinity)
    return torch.where(product.isnan(), infinity, product)


def normal(x: torch.Tensor) -> torch.Tensor:
    """Return floats with 0 in place of subnormals. Integers stay."""
    return torch.where(x.abs() < 2.0**-126, 0, x) if x.is_floating_point() else x


@cache  # ttnn takes 12 us to say it
def on_blackhole() -> bool:
    """Whether the vector unit is a Blackhole's: a NaN that it makes is positive, where a Wormhole's has a sign."""
    return ttnn.get_arch_name() == "blackhole"


def flushed(x: torch.Tensor) -> torch.Tensor:
    """Return float32 with a zero of its sign in place of subnormals."""
    return torch.where(x.abs() < 2.0**-126, torch.copysign(torch.zeros(()), x), x)


def is_negative(x: torch.Tensor) -> torch.Tensor:
    """Whether the sign bit of float32 is set, as the vector unit compares with 0: also of -0 and of a NaN."""
    return x.view(torch.int32) < 0


def infinite(x: torch.Tensor, sign: torch.Tensor | None = None) -> torch.Tensor:
    """Return float32 with infinity of its sign, or of `sign`'s, in place of NaN; a Blackhole's NaN is positive."""
    sign = torch.ones(()) if on_blackhole() else x if sign is None else sign
    return torch.where(x.isnan(), torch.copysign(torch.full((), torch.inf), sign), x)


def signed_nan(is_negative: torch.Tensor) -> torch.Tensor:
    return torch.copysign(torch.full((), torch.nan), torch.where(is_negative, -1.0, 1.0))


def signed_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a * b. A NaN of the product has its sign."""
    result = flushed(a * b)
    return torch.where(result.isnan(), signed_nan(is_negative(a) ^ is_negative(b)), result)

"""The matrix engine's sums in a float32 dest, almost to the bit.

The engine adds eight products at a time. It first rounds each product to a multiple of 2**-10 of the largest
product's power of two, ties away from zero. That power of two is the sum of the operands' exponents. A phase that
multiplies an operand's last bits counts the exponent of the bits' place, also where these bits are zero.

Records of matmuls are met to 2e-7, with bfloat8_b and bfloat4_b weights in LoFi and HiFi2 to the bit. The last
bits of longer sums depend on the order in which dest adds groups.
"""

from functools import lru_cache, partial

import numpy as np
import torch

from golden_mesh.arithmetic.engine import SRC_A, SRC_A_FIRST, SRC_B, SRC_B_FIRST, keep
from golden_mesh.arithmetic.parts import constant, in_parts

GROUP = 8  # products that the engine adds at a time
HALF = 16  # rows of the inner dim of one instruction: two groups
PLACES = 10  # below the largest product's power of two
AT_ONCE = 1 << 17  # elements of a result at a time: they stay in the processor's cache
STEP = 64  # of the inner dim at a time
FEW = 1 << 16  # elements: to look for zeros among more takes as long as to multiply them
_EXPONENT = constant(0xFF << 23)
_NONE = -10_000  # in place of a zero's exponent: below every sum of two
_LEAST = -100  # of a group's largest product; smaller groups count as zero
TIES_AWAY = 1 + 2**-16  # moves only ties: a product has 12 bits
# Of the first bits of each phase (engine.py): SrcB's and SrcA's bits after the first ones lie lower.
PLACES_OF_PHASES = (1.0, 2.0**-SRC_A_FIRST, 2.0**-SRC_B_FIRST, 2.0 ** -(SRC_A_FIRST + SRC_B_FIRST))
# Adding 1.5 * 2**23 steps to a float32 rounds it to a step.
_ROUNDING = 1.5 * 2.0 ** (23 - PLACES)
_ROUNDINGS = [constant(_ROUNDING * place) for place in PLACES_OF_PHASES]


def product(a: torch.Tensor, b: torch.Tensor, phases: int, start: torch.Tensor | None = None) -> torch.Tensor:
    """Return a [B, M, K] @ b [B, K, N] as dest holds it. a goes through SrcB, b through SrcA. All are float32.

    start: [B, M, N] in dest before the first product; None: zeros.
    """
    batch, rows, inner = a.shape
    padding = -inner % HALF
    a = torch.nn.functional.pad(a, (0, padding)).permute(2, 0, 1)[..., None]  # [K, B, M, 1]
    b = torch.nn.functional.pad(b, (0, 0, 0, padding)).transpose(0, 1)[:, :, None]  # [K, B, 1, N]
    total = torch.zeros(batch, rows, b.shape[3]) if start is None else start.clone()
    columns = max(1, AT_ONCE // rows)
    batches = max(1, AT_ONCE // (rows * b.shape[3]))
    for left, right, sums in zip(a.split(batches, 1), b.split(batches, 1), total.split(batches)):
        for part, some in zip(right.split(columns, 3), sums.split(columns, 2)):
            some.copy_(_product(left, part, phases, some))
    return total


def _product(a: torch.Tensor, b: torch.Tensor, phases: int, total: torch.Tensor) -> torch.Tensor:
    """Return total + the sum over K of a [K, B, M, 1] * b [K, B, 1, N]. What is temporary stays in the cache."""
    total = total.contiguous().clone()
    start, group = torch.empty_like(total), torch.empty_like(total)
    largest, other = (torch.empty(total.shape, dtype=torch.int16) for _ in range(2))
    for left, right in zip(a.split(STEP), b.split(STEP)):
        left, right = left.contiguous(), right.contiguous()
        exponents = list(zip(_exponents(left), _exponents(right)))
        parts = [(list(zip(of_a, of_b)), place) for of_a, of_b, place in _phases(left, right, phases)]
        for first in range(0, len(left), GROUP):
            torch.add(*exponents[first], out=largest)
            for pair in exponents[first + 1 : first + GROUP]:
                torch.maximum(largest, torch.add(*pair, out=other), out=largest)
            start.copy_(_start_(largest))
            for pairs, place in parts:
                torch.mul(start, place, out=group)
                for of_a, of_b in pairs[first : first + GROUP]:
                    group.addcmul_(of_a, of_b)
                total.add_(group.sub_(start, alpha=place))
    return total


def _exponents(x: torch.Tensor) -> torch.Tensor:
    """Return each value's exponent in int16, _NONE for 0. x is contiguous."""
    exponents = (x.view(torch.int32) >> 23).bitwise_and_(0xFF).short()
    zeros = exponents == 0
    return exponents.sub_(127).masked_fill_(zeros, _NONE)


def _start_(exponents: torch.Tensor) -> torch.Tensor:
    """Return 1.5 * 2**(23 - PLACES) times these powers of two, as bfloat16, in the same memory."""
    bias = 127 + 23 - PLACES
    exponents.clamp_(_LEAST, 254 - bias).mul_(128).add_(bias * 128 + 64)  # the bits of 1.5
    return exponents.view(torch.bfloat16)


def sums_of_rows(x: torch.Tensor, factor: float, phases: int) -> torch.Tensor:
    """Return the sums of x * factor over rows, [..., K] -> [..., 1], as dest holds them. x goes through SrcB.

    A row of elements has few products, so this takes a few passes over x only.
    """
    return in_parts(partial(_sums_of_rows, factor=factor, phases=phases), x, rows=True)


def _sums_of_rows(x: torch.Tensor, factor: float, phases: int) -> torch.Tensor:
    padding = -x.shape[-1] % GROUP
    x = torch.nn.functional.pad(x, (0, padding)) if padding else x
    groups = x.reshape(-1, GROUP).t()
    if x.dtype == torch.float32:  # torch's copy takes three times as long
        members = torch.from_numpy(np.ascontiguousarray(groups.numpy()))
    else:
        members = torch.empty(groups.shape).copy_(groups)
    return _sums_of_groups(members, factor, phases).view(*x.shape[:-1], -1).sum(-1, keepdim=True).float()


def sums_apart(x: torch.Tensor, factor: float, phases: int) -> torch.Tensor:
    """As `sums_of_rows`, where each element of x lies in a group of its own."""
    return _sums_of_groups(x.unsqueeze(-2), factor, phases).sum(-1, keepdim=True).float()


def sums_of_columns(x: torch.Tensor, factor: float, phases: int) -> torch.Tensor:
    """Return the sums of x * factor over columns, [..., K, W] -> [..., 1, W]. x goes through SrcA."""
    x = torch.nn.functional.pad(x.float(), (0, 0, 0, -x.shape[-2] % GROUP)).unflatten(-2, (-1, GROUP))
    return _sums_of_groups(x, factor, phases, through_a=True).sum(-2, keepdim=True).float()


def _sums_of_groups(x: torch.Tensor, factor: float, phases: int, through_a: bool = False) -> torch.Tensor:
    """Sums of x * factor over groups, [..., 8, W] -> [..., W], in float64, which holds those of all phases."""
    of_factor, power_of_factor = _factor(factor, through_a)
    of_x = _split(x, *((SRC_A_FIRST, SRC_A) if through_a else (SRC_B_FIRST, SRC_B)))
    largest = power(x).amax(-2, keepdim=True).mul_(power_of_factor)
    in_order = ((0, 0), (1, 0), (0, 1), (1, 1)) if through_a else ((0, 0), (0, 1), (1, 0), (1, 1))
    parts = 0
    for (first, second), rounding in zip(in_order[:phases], _ROUNDINGS):
        if of_x[first] is not None and of_factor[second] is not None:
            start = largest * rounding
            products = of_x[first] * of_factor[second]
            parts += products.add_(start).sub_(start).sum(-2).double()
    return parts


@lru_cache(1 << 10)
def _factor(factor: float, through_a: bool) -> tuple[list[torch.Tensor | None], torch.Tensor]:
    """Return the bits of a factor that each phase multiplies, and its power of two. through_a: the other operand is."""
    factor = constant(float(factor))
    parts = _split(factor, *((SRC_B_FIRST, SRC_B) if through_a else (SRC_A_FIRST, SRC_A)))
    return [None if part is None else part * TIES_AWAY for part in parts], power(factor)


def power(x: torch.Tensor) -> torch.Tensor:
    """Return each value's power of two, 0 for 0."""
    return (x.contiguous().view(torch.int32) & _EXPONENT).view(torch.float32)


def _phases(a: torch.Tensor, b: torch.Tensor, phases: int) -> list[tuple[torch.Tensor, torch.Tensor, float]]:
    """Return the operands of each phase (engine.py) that are not all zeros, and the place of their first bits."""
    first_a, rest_a = _split(a, SRC_B_FIRST, SRC_B)
    first_b, rest_b = _split(b, SRC_A_FIRST, SRC_A)
    parts = (first_a, first_b), (first_a, rest_b), (rest_a, first_b), (rest_a, rest_b)
    return [
        (left * TIES_AWAY, right, place)
        for (left, right), place in zip(parts[:phases], PLACES_OF_PHASES)
        if left is not None and right is not None
    ]


def _split(x: torch.Tensor, first: int, taken: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the first significant bits of x, and the rest of the bits that the multiplier takes. None: zeros."""
    top, kept = keep(x, first), keep(x, taken)
    return top, None if x.numel() < FEW and torch.equal(top, kept) else kept - top

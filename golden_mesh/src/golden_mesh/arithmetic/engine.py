"""The matrix engine, element by element: operands cut by its phases, an adder of eleven bits, rounding in dest.

The multiplier takes five bits of SrcA and seven of SrcB at a time. These include the leading 1 that a float does not
store. Its phases take the bits in this order:

- Phase 1: SrcA's first 5 bits    x SrcB's first 7 bits.
- Phase 2: SrcA's next 5 bits     x SrcB's first 7 bits.
- Phase 3: SrcA's first 5 bits    x SrcB's last 4 bits.
- Phase 4: SrcA's next 5 bits     x SrcB's last 4 bits.

A register holds 11 bits: bfloat16's 8, or float32 without its last 13. The fidelities therefore do this:

    LoFi    cuts SrcA to 5 bits and SrcB to 7.
    HiFi2   cuts SrcB alone.
    HiFi3   leaves out the smallest part, 2**-12 of a product at most.
    HiFi4   is exact for bfloat16, and cuts one bit of a float32 in SrcA.

Bits are cut, not rounded, so every lost bit makes a result smaller.

A float32 tensor has 24 bits unless `bits` says that fewer are used. A bfloat16 tensor has 8.
"""

import math
from functools import partial

import torch

from golden_mesh.arithmetic import special
from golden_mesh.arithmetic.kernel import Kernel
from golden_mesh.arithmetic.parts import constant, in_parts
from golden_mesh.arithmetic.plain import in_float32, same

SRC_A, SRC_A_FIRST, SRC_B, SRC_B_FIRST = 10, 5, 11, 7  # significant bits that the multiplier takes
FLOAT32, BFLOAT16 = 24, 8  # significant bits of the formats
# By the number of a float32's last bits that are cut off: the mask of the others, and half of the last of them.
_MASKS = [constant(-1 << cut) for cut in range(FLOAT32)]
_HALVES = [constant(1 << cut >> 1) for cut in range(FLOAT32)]
_NINE_SIXTEENTHS = constant(0x9000)  # of a bfloat16's last bit
_ALIGNED_BITS = 10  # below the larger operand's power of two
_EXPONENT = constant(0xFF << 23)
_NEGATIVE_POWER = (-1 << 31) + (1 << 23)  # the bits of -(2**-126)
_LEAST, _BELOW = constant((_ALIGNED_BITS + 1) << 23), constant(_ALIGNED_BITS << 23)
_ROUNDING = 23 - _ALIGNED_BITS
_TO_START = constant((_ROUNDING << 23) + (1 << 22))
# The last 8 make a scale larger by 2**-20: that moves only ties of 11 bits, away from zero.
_INVERSE = constant((254 << 23) + 8)
_HUGE = 2.0**113
_HALF, _TIES_OF_DEST = constant(0.5), constant(1 + 2.0**-12)


@in_float32(same)
def keep(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Return float32 `x` with all but its first `bits` significant bits cut off."""
    return (x.contiguous().view(torch.int32) & _MASKS[FLOAT32 - bits]).view(torch.float32)


def cut_number(value: float) -> float:
    """A number as a kernel has it beside bfloat16: its first eight bits."""
    return keep(torch.tensor(float(value)), BFLOAT16).item()


def source_a(x: torch.Tensor, kernel: Kernel, bits: int = FLOAT32) -> torch.Tensor:
    """Return the part of `x` in SrcA that the multiplier uses, as float32."""
    return _cut(x, SRC_A_FIRST if kernel.phases == 1 else SRC_A, bits)


def source_b(x: torch.Tensor, kernel: Kernel, bits: int = FLOAT32) -> torch.Tensor:
    """Return the part of `x` in SrcB that the multiplier uses, as float32."""
    return _cut(x, SRC_B_FIRST if kernel.phases <= 2 else SRC_B, bits)


def _cut(x: torch.Tensor, taken: int, bits: int) -> torch.Tensor:
    bits = BFLOAT16 if x.dtype == torch.bfloat16 else bits
    return keep(x.float(), taken) if taken < bits else x.float()


@in_float32(same)
def round_away(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Return float32 `x` rounded to its first `bits` significant bits, ties away from zero."""
    cut = FLOAT32 - bits
    return (x.contiguous().view(torch.int32) + _HALVES[cut]).bitwise_and_(_MASKS[cut]).view(torch.float32)


def to_bfloat16(x: torch.Tensor) -> torch.Tensor:
    """Return a float32 dest packed to bfloat16. The tensor stays float32 for the next step."""
    return round_away(x, BFLOAT16)


@in_float32(same)
def to_bfloat16_(x: torch.Tensor) -> torch.Tensor:
    """Pack a float32 dest to bfloat16 in place. The caller must own the float32 `x`."""
    x.view(torch.int32).add_(_HALVES[16]).bitwise_and_(_MASKS[16])
    return x


@in_float32(same)
def to_nearest_even(x: torch.Tensor) -> torch.Tensor:
    """Return a float32 sum in L1 as bfloat16 holds it, as float32."""
    return x.bfloat16().float()


@in_float32(same)
def round_sum_(x: torch.Tensor) -> torch.Tensor:
    """Round a sum as a bfloat16 dest holds it, in place. The caller must own the float32 `x`.

    The engine adds with eleven bits and rounds the sum to eight, ties away from zero both times. So 7/16 of a
    unit in the last place is already rounded up. The code adds 9/16 of a unit and cuts off the rest.
    """
    round_bits_(x.view(torch.int32))
    return x


def round_bits_(x: torch.Tensor) -> None:
    """Round as `round_sum_` does, given the sum's bits as int32."""
    x.add_(_NINE_SIXTEENTHS).bitwise_and_(_MASKS[16])


def add(a: torch.Tensor, b: torch.Tensor, bits: int = FLOAT32) -> torch.Tensor:
    """Return a + b packed to bfloat16, as float32. Both kinds of dest give equal results. Shapes broadcast.

    bits: significant bits of float32 operands.
    """
    return to_bfloat16_(add_in_float32_dest(a, b, bits))


def add_in_dest(a: torch.Tensor, b: torch.Tensor, kernel: Kernel) -> torch.Tensor:
    """Return a + b as the kernel's dest holds it, as float32."""
    return add_in_float32_dest(a, b) if kernel.wide else add(a, b)


def subtract(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a - b, rounded as in `add`."""
    return to_bfloat16_(subtract_in_float32_dest(a, b))


@in_float32(lambda a, b, *bits: a.float() + b.float())
def add_in_float32_dest(a: torch.Tensor, b: torch.Tensor, bits: int = FLOAT32) -> torch.Tensor:
    """Return a + b as a float32 dest holds it.

    A register holds 11 bits, so a float32 operand is cut to 11. The adder then rounds both operands to a
    multiple of 2**-10 of the larger operand's power of two, ties away from zero.
    """
    return in_parts(partial(_sum, bits=bits), a, b)


@in_float32(lambda a, b: a.float() - b.float())
def subtract_in_float32_dest(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a - b as a float32 dest holds it. See `add_in_float32_dest`."""
    return in_parts(partial(_sum, sign=-1), a, b)


def _sum(a: torch.Tensor, b: torch.Tensor, sign: int = 1, bits: int = FLOAT32) -> torch.Tensor:
    """a + sign * b."""
    a, b = _in_srcs(a, b, bits)
    if a.numel() and a.view(torch.int32).min() >= _NEGATIVE_POWER:  # else a sum may be a zero with a sign
        total = _rounded_sum(a, b, sign)
        if math.isfinite(total.sum()):  # else a value is too large, or no number
            return total
    first, second, step = _aligned(a, b)
    total = first.add_(second, alpha=sign).mul_(step)
    return special.repaired(total, special.total, a, b if sign > 0 else -b)


def _rounded_sum(a: torch.Tensor, b: torch.Tensor, sign: int, largest: int = 255 - _ROUNDING) -> torch.Tensor:
    """The sum in few passes. Adding an operand to 1.5 * 2**13 powers of two of the larger one rounds it."""
    power = torch.maximum(a.view(torch.int32) & _EXPONENT, b.view(torch.int32) & _EXPONENT)
    start = power.clamp_((_ALIGNED_BITS + 1) << 23, largest << 23).add_(_TO_START).view(torch.float32)
    return torch.add(start, b, alpha=sign * (1 + 2.0**-20)).add_(a, alpha=1 + 2.0**-20).sub_(start)


def below_largest(x: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """Return x - largest of float32 values of eleven bits, as a float32 dest holds it."""
    most = largest.abs().max()
    if most < _HUGE:
        return _rounded_sum(x, largest, -1, 254 - _ROUNDING)
    if most < math.inf:
        return _rounded_sum(x * 0.25, largest * 0.25, -1, 254 - _ROUNDING).mul_(4)
    return special.total(x, -largest)


@in_float32(lambda dest, a, b: dest + a + b)
def add_to_bfloat16_dest(dest: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return dest + (a + b) as a bfloat16 dest holds it, as float32. With a dest of zeros it is `add`.

    The adder first adds a and b as `add_in_float32_dest` does. It then rounds their sum and dest to a multiple of
    2**-10 of the largest of the three powers of two: ties of the sum up, ties of dest away from zero.
    """
    first, second, step = _aligned(*_in_srcs(a, b))
    common = torch.maximum(step, _step(dest).view(torch.float32))
    pair = first.add_(second).mul_(step / common).add_(_HALF).floor_()
    held = (dest / common).mul_(_TIES_OF_DEST).add_(_HALF).floor_()
    total = to_bfloat16_(pair.add_(held).mul_(common))
    return special.repaired(total, lambda *terms: sum(map(special.numbers, terms)).float(), dest, a, b)


def _aligned(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return both operands as whole multiples of the adder's step, and the step. Shapes broadcast."""
    step = _step(a, b)
    scale = (_INVERSE - step).view(torch.float32)  # 1 / step
    return a.mul(scale).round_(), b.mul(scale).round_(), step.view(torch.float32)


def _in_srcs(a: torch.Tensor, b: torch.Tensor, bits: int = FLOAT32) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both operands of the adder in float32, cut to the bits of a register."""
    return _cut(a, SRC_B, bits), _cut(b, SRC_B, bits)


def _step(*values: torch.Tensor) -> torch.Tensor:
    """Return the bits of 2**-10 of the largest power of two among float32 values. Shapes broadcast."""
    exponents = [x.contiguous().view(torch.int32) & _EXPONENT for x in values]
    largest = exponents[0] if len(values) == 1 else torch.maximum(*exponents)
    return torch.maximum(largest, _LEAST).sub_(_BELOW)

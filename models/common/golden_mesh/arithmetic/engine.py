"""The matrix engine, element by element: operands cut by the multiplier's phases, an adder of eleven bits, rounding in dest.

The multiplier takes five bits of SrcA and seven of SrcB at a time (the leading one, which a float does not write, is one of
them). Its phases go over the bits in this order:

    phase 1   SrcA's first 5 bits    x SrcB's first 7 bits
    phase 2   SrcA's next 5 bits     x SrcB's first 7 bits
    phase 3   SrcA's first 5 bits    x SrcB's last 4 bits
    phase 4   SrcA's next 5 bits     x SrcB's last 4 bits

A register holds 11 bits: bfloat16's 8, or float32 without its last 13. So LoFi cuts SrcA to 5 bits and SrcB to 7; HiFi2 cuts
SrcB alone; HiFi3 leaves out the smallest part, 2**-12 of a product at most; HiFi4 is exact for bfloat16, and cuts one bit of
a float32 in SrcA. Cut, not rounded: what is lost makes every result smaller.

A float32 tensor in these functions is one that the chip unpacks from float32 (to 11 bits); a bfloat16 one has its 8.
"""

import torch

from models.common.golden_mesh.arithmetic.kernel import Kernel

SRC_A, SRC_A_FIRST, SRC_B, SRC_B_FIRST = 10, 5, 11, 7  # significant bits that the multiplier takes
_FRACTION = 24  # significant bits of a float32


def keep(x: torch.Tensor, bits: int) -> torch.Tensor:
    """float32 `x` with all but its first `bits` significant bits cut off."""
    return (x.contiguous().view(torch.int32) & (-1 << (_FRACTION - bits))).view(torch.float32)


def source_a(x: torch.Tensor, kernel: Kernel) -> torch.Tensor:
    """What of `x` in SrcA the multiplier uses, as float32."""
    if kernel.phases == 1:
        return keep(x.float(), SRC_A_FIRST)
    return x.float() if x.dtype == torch.bfloat16 else keep(x.float(), SRC_A)


def source_b(x: torch.Tensor, kernel: Kernel) -> torch.Tensor:
    """What of `x` in SrcB the multiplier uses, as float32."""
    if kernel.phases <= 2:
        return keep(x.float(), SRC_B_FIRST)
    return x.float() if x.dtype == torch.bfloat16 else keep(x.float(), SRC_B)


def to_dest(x: torch.Tensor, kernel: Kernel) -> torch.Tensor:
    """A result as dest holds it; `x` is a float32 of one's own, changed in place."""
    return x if kernel.wide else to_bfloat16_dest_(x)


def to_bfloat16_dest_(x: torch.Tensor) -> torch.Tensor:
    """float32 `x` as a bfloat16 dest holds it, in place, still as float32.

    The engine adds with eleven bits and rounds the sum to eight, ties away from zero both times. So what is 7/16 of a unit
    in the last place is rounded up already: 9/16 of one is added and the rest cut off.
    """
    x.view(torch.int32).add_(0x9000).bitwise_and_(-1 << 16)
    return x


def multiply(a: torch.Tensor, b: torch.Tensor, kernel: Kernel) -> torch.Tensor:
    """a (through SrcA) * b (through SrcB), as dest holds it; shapes broadcast."""
    first, second = source_a(a, kernel), source_b(b, kernel)
    result = first * second
    if kernel.phases == 3:
        result -= (first - keep(first, SRC_A_FIRST)) * (second - keep(second, SRC_B_FIRST))
    return to_dest(result, kernel)


def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a + b packed to bfloat16, which is the same from a dest of either kind. Shapes broadcast.

    The smaller operand is first rounded to a multiple of 2**-10 of the larger one's power of two; `to_bfloat16_dest_` sees
    only the sum's power of two, which now and then is another one: 99.6 % of sums of random bfloat16 values are a chip's.
    """
    return to_bfloat16_dest_(a.float() + b.float()).bfloat16()


def subtract(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a - b, rounded as `add` is."""
    return to_bfloat16_dest_(a.float() - b.float()).bfloat16()


def add_in_float32_dest(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a + b as a float32 dest holds it: float32 in name, eleven bits in fact."""
    return round_away(keep(a.float(), SRC_B) + keep(b.float(), SRC_B), SRC_B)


def round_away(x: torch.Tensor, bits: int) -> torch.Tensor:
    """float32 `x` rounded to its first `bits` significant bits, ties away from zero."""
    cut = _FRACTION - bits
    return (x.contiguous().view(torch.int32) + (1 << (cut - 1))).bitwise_and_(-1 << cut).view(torch.float32)


def to_bfloat16(x: torch.Tensor) -> torch.Tensor:
    """float32 dest packed to bfloat16."""
    return round_away(x, 8).bfloat16()

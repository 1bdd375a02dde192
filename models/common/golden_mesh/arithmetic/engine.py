"""The matrix engine, element by element: operands cut by its phases, an adder of eleven bits, rounding in dest.

The multiplier takes five bits of SrcA and seven of SrcB at a time (the leading one, which a float does not write, is
one of them). Its phases go over the bits in this order:

    phase 1   SrcA's first 5 bits    x SrcB's first 7 bits
    phase 2   SrcA's next 5 bits     x SrcB's first 7 bits
    phase 3   SrcA's first 5 bits    x SrcB's last 4 bits
    phase 4   SrcA's next 5 bits     x SrcB's last 4 bits

A register holds 11 bits: bfloat16's 8, or float32 without its last 13. So LoFi cuts SrcA to 5 bits and SrcB to 7; HiFi2
cuts SrcB alone; HiFi3 leaves out the smallest part, 2**-12 of a product at most; HiFi4 is exact for bfloat16, and cuts
one bit of a float32 in SrcA. Cut, not rounded: what is lost makes every result smaller.

A float32 tensor has 24 bits unless `bits` says that fewer are used; a bfloat16 tensor has 8.
"""

import torch

from models.common.golden_mesh.arithmetic.kernel import Kernel

SRC_A, SRC_A_FIRST, SRC_B, SRC_B_FIRST = 10, 5, 11, 7  # significant bits that the multiplier takes
FLOAT32, BFLOAT16 = 24, 8  # significant bits of the formats


def keep(x: torch.Tensor, bits: int) -> torch.Tensor:
    """float32 `x` with all but its first `bits` significant bits cut off."""
    return (x.contiguous().view(torch.int32) & (-1 << (FLOAT32 - bits))).view(torch.float32)


def source_a(x: torch.Tensor, kernel: Kernel, bits: int = FLOAT32) -> torch.Tensor:
    """What of `x` in SrcA the multiplier uses, as float32."""
    return _cut(x, SRC_A_FIRST if kernel.phases == 1 else SRC_A, bits)


def source_b(x: torch.Tensor, kernel: Kernel, bits: int = FLOAT32) -> torch.Tensor:
    """What of `x` in SrcB the multiplier uses, as float32."""
    return _cut(x, SRC_B_FIRST if kernel.phases <= 2 else SRC_B, bits)


def _cut(x: torch.Tensor, taken: int, bits: int) -> torch.Tensor:
    bits = BFLOAT16 if x.dtype == torch.bfloat16 else bits
    return keep(x.float(), taken) if taken < bits else x.float()


def round_away(x: torch.Tensor, bits: int) -> torch.Tensor:
    """float32 `x` rounded to its first `bits` significant bits, ties away from zero."""
    cut = FLOAT32 - bits
    return (x.contiguous().view(torch.int32) + (1 << (cut - 1))).bitwise_and_(-1 << cut).view(torch.float32)


def to_bfloat16(x: torch.Tensor) -> torch.Tensor:
    """float32 dest packed to bfloat16; still a float32 tensor, as what is computed with next."""
    return round_away(x, BFLOAT16)


def to_bfloat16_(x: torch.Tensor) -> torch.Tensor:
    """The same in place; `x` is a float32 of one's own."""
    x.view(torch.int32).add_(0x8000).bitwise_and_(-1 << 16)
    return x


def round_sum_(x: torch.Tensor) -> torch.Tensor:
    """A sum as a bfloat16 dest holds it, in place; `x` is a float32 of one's own.

    The engine adds with eleven bits and rounds the sum to eight, ties away from zero both times. So what is 7/16 of a
    unit in the last place is rounded up already: 9/16 of one is added and the rest cut off.
    """
    x.view(torch.int32).add_(0x9000).bitwise_and_(-1 << 16)
    return x


def to_dest_(x: torch.Tensor, kernel: Kernel) -> torch.Tensor:
    """A product as dest holds it, in place; `x` is a float32 of one's own."""
    return x if kernel.wide else round_sum_(x)


def multiply(a: torch.Tensor, b: torch.Tensor, kernel: Kernel, bits: int = FLOAT32) -> torch.Tensor:
    """a (through SrcA) * b (through SrcB), as dest holds it; shapes broadcast."""
    first, second = source_a(a, kernel, bits), source_b(b, kernel, bits)
    result = first * second
    if kernel.phases == 3:
        result -= (first - keep(first, SRC_A_FIRST)) * (second - keep(second, SRC_B_FIRST))
    return to_dest_(result, kernel)


def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a + b packed to bfloat16, which is the same from a dest of either kind; a float32 tensor. Shapes broadcast.

    The smaller operand is first rounded to a multiple of 2**-10 of the larger one's power of two; `round_sum_` sees
    only the sum's power of two, which now and then is another one: 99.6 % of random sums are a chip's.
    """
    return round_sum_(a.float() + b.float())


def subtract(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a - b, rounded as `add` is."""
    return round_sum_(a.float() - b.float())


def add_in_float32_dest(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a + b as a float32 dest holds it: float32 in name, eleven bits in fact."""
    return round_away(keep(a.float(), SRC_B) + keep(b.float(), SRC_B), SRC_B)

"""The packer: from dest to the format of the tensor that an op writes.

bfloat16    to nearest, ties away from zero.
bfloat8_b   twice: each value alone to 7 significant bits, then all of a block of 16 to 7 bits below the largest's
            power of two, ties away from zero both times. Bfloat16 values come out 0.53 % larger in the mean, float32
            ones 0.26 %.
bfloat4_b   as bfloat8_b, then all but the first 3 bits cut off: 14 % smaller in the mean.
others      as ttnn's host packing (rounding.py).

ttnn.typecast alone asks for another way (`typecast`): no rounding of single values first.
"""

import torch
import ttnn

from models.common.golden_mesh.arithmetic.engine import BFLOAT16, keep, round_away, to_bfloat16
from models.common.golden_mesh.rounding import BLOCK, round_to

# Moves ties, and nothing else, away from zero: a value of 8 bits that is no tie is further than this from one.
_AWAY = 1 + 2.0**-12


def pack(values: torch.Tensor, dtype: ttnn.DataType) -> torch.Tensor:
    """What a tensor of `dtype` holds after an op that computed `values`; see `round_to` for how it is kept."""
    if values.numel() > 1 and not any(values.stride()):  # one value, expanded: stays one value
        return pack(values[(0,) * values.dim()], dtype).expand(values.shape)
    if dtype == ttnn.bfloat16 and values.dtype == torch.float32:
        return to_bfloat16(values).bfloat16()
    if dtype not in (ttnn.bfloat8_b, ttnn.bfloat4_b):
        return round_to(values, dtype)
    packed = _block(round_away(values.float(), 7))
    return packed if dtype == ttnn.bfloat8_b else _cut_to_four_bits(packed)


def typecast(values: torch.Tensor, dtype: ttnn.DataType) -> torch.Tensor:
    """What ttnn.typecast makes of a bfloat16 or float32 tensor. To bfloat8_b float32 is cut to bfloat16 first, which
    makes up for the ties that then go away from zero; to bfloat16 the vector unit rounds it, ties to even."""
    if dtype == ttnn.bfloat8_b:
        return _block(keep(values.float(), BFLOAT16))
    return round_to(values, dtype) if dtype == ttnn.bfloat16 else pack(values, dtype)


def _block(values: torch.Tensor) -> torch.Tensor:
    """float32 values of at most 8 significant bits in bfloat8_b, ties away from zero."""
    return round_to(values * _AWAY, ttnn.bfloat8_b)


def _cut_to_four_bits(values: torch.Tensor) -> torch.Tensor:
    """Values of bfloat8_b, of which each block's largest has its first bit set, in bfloat4_b."""
    width = values.shape[-1]
    blocks = torch.nn.functional.pad(values.float(), (0, -width % BLOCK)).unflatten(-1, (-1, BLOCK))
    largest = blocks.abs().amax(-1, keepdim=True)
    step = (largest.view(torch.int32) & (0xFF << 23)).view(
        torch.float32
    ) / 4  # 3 bits: 1, 1/2 and 1/4 of its power of two
    cut = torch.trunc(blocks / step.clamp(min=torch.finfo(torch.float32).tiny)) * step
    return cut.flatten(-2)[..., :width].bfloat16()

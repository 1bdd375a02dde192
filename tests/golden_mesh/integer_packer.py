"""The packer's way to a block float in integers, after the ISA documentation: what the float code must equal."""

import torch
import torch.nn.functional as F


def integer_packed(values: torch.Tensor, bits: int, one_by_one: bool = True) -> torch.Tensor:
    """values [..., W] as blocks of 16 whose codes have `bits` bits (7: bfloat8_b, 3: bfloat4_b) beside the sign.

    one_by_one: every value is first rounded to 7 significant bits by itself; else float32 is cut to bfloat16.
    """
    width = values.shape[-1]
    blocks = F.pad(values.float(), (0, -width % 16)).contiguous().view(torch.int32).long().unflatten(-1, (-1, 16))
    sign, magnitude = blocks < 0, blocks & 0x7FFFFFFF
    magnitude = (magnitude + 0x10000) & ~0x1FFFF if one_by_one else magnitude & ~0xFFFF
    exponent = magnitude >> 23
    code = torch.where(exponent > 0, (magnitude >> 16 & 127) | 128, 0)
    shared = exponent.amax(-1, keepdim=True)
    shift = shared - exponent
    code = torch.where(shift < 8, (code + (1 << shift.clamp(max=8))) >> (shift.clamp(max=8) + 1), 0).clamp(max=127)
    code = code >> (7 - bits)
    result = torch.where(sign, -code, code) * torch.exp2((shared - 127 - (bits - 1)).double())
    return result.flatten(-2)[..., :width].float()

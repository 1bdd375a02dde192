"""The packer's conversion to a block float, in integers, after the ISA documentation. The float code must match it."""

import torch
import torch.nn.functional as F


def integer_packed(values: torch.Tensor, bits: int, one_by_one: bool = True) -> torch.Tensor:
    """Return values [..., W] packed in blocks of 16.

    bits: bits of a code beside the sign (7: bfloat8_b, 3: bfloat4_b).

    one_by_one: True first rounds every value alone to 7 significant bits. False cuts float32 to bfloat16.
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

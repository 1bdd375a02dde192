"""Values that a block float holds exactly, chosen for a weight [in, out]: 16 neighbours in a row share an exponent."""

import torch

from models.common.golden_mesh.rounding import BLOCK, to_block_float

BITS = {"bfloat8_b": 7, "bfloat4_b": 3}  # of a code, without its sign


def rounded(weight: torch.Tensor, format: str) -> torch.Tensor:
    """What ttnn's packing makes of a weight, in float32."""
    return to_block_float(weight, BITS[format]).float()


def nearest_codes(rows: torch.Tensor) -> torch.Tensor:
    """rows [..., columns] -> bfloat4_b's values near them, each block with the best of three exponents.

    The packing takes the exponent of a block's largest value. Half that step cuts the largest off at 7 codes and is
    finer for the other fifteen; the double step reaches a largest of 7.5 to 8 codes, which would be cut off to 7. What
    comes out is packed without a change: its own largest asks for a step that divides all of it.
    """
    blocks = rows.unflatten(-1, (-1, BLOCK))
    largest = blocks.abs().amax(-1, keepdim=True)
    exponent = torch.frexp(largest).exponent  # largest < 2 ** exponent
    step = torch.ldexp(torch.ones_like(largest), exponent - BITS["bfloat4_b"])
    best = _at_step(blocks, step)
    error = _squared_error(blocks, best)
    for factor in (0.5, 2.0):
        other = _at_step(blocks, step * factor)
        other_error = _squared_error(blocks, other)
        best = torch.where(other_error < error, other, best)
        error = torch.minimum(error, other_error)
    return best.flatten(-2)


def _at_step(blocks: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    most = (1 << BITS["bfloat4_b"]) - 1
    return (blocks / step).round().clamp(-most, most) * step


def _squared_error(blocks: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """[..., blocks, 1]"""
    return (blocks - codes).pow(2).sum(-1, keepdim=True)

"""Rounding to ttnn's dtypes as ttnn's own host packing does it, in torch, bit for bit.

bfloat16    round to nearest, ties to even. Subnormals stay. Any NaN becomes the one quiet positive NaN (0x7FC0).
bfloat8_b   16 neighbors in a row share the exponent of the largest. Each keeps 7 bits (bfloat4_b: 3).
bfloat4_b   The first of these bits is the leading 1 that a float does not store. Values are taken as float32, never
            through bfloat16:
            1. Bits that a shift to the shared exponent pushes out of float32's 24 are cut off, not rounded. A value
               just above a tie may become a tie.
            2. Round to nearest, ties to even. A value that would carry into one more bit keeps the largest code.
            3. Zero, minus zero and values that round to zero become plus zero. Subnormals count as zero.
            Infinity and NaN take the shared exponent 255. Ordinary neighbors then become zero and infinity stays.
            A NaN stays NaN if its highest mantissa bits say so, and is infinity otherwise. No code is subnormal.
integers    cut towards zero. Integers beyond the range wrap round. Floats beyond that of uint8 and uint16 saturate.
            ttnn leaves floats beyond the range to the processor. This is the result for float32 below 2**31.

Other dtypes are taken as float32. ttnn.from_torch does so too, except for dtypes unknown to ttnn
(float64, float16, int64, int16). On the way to a block float it converts these to bfloat16, and so rounds
twice. This module rounds once: its inputs are results of ops, and a chip has none of these dtypes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import ttnn

BLOCK = 16  # neighbors that share an exponent: a row of a tile's face
_CHUNK = 8192  # blocks rounded at a time, 512 KiB of float32: stays in a core's cache, and call overhead stays small

_SIGN, _EXPONENT, _FRACTION, _HIDDEN_ONE = -(1 << 31), 0xFF, 0x7FFFFF, 0x800000  # of a float32
_FRACTION_BITS, _BIAS = 23, 127
# Shared exponents (biased) for which `_round_chunk` can compute in float32. Below them a unit in the last place is
# subnormal. Above them are infinity and NaN.
_ORDINARY = (24, 254)


def round_to(values: torch.Tensor, dtype: ttnn.DataType | str) -> torch.Tensor:
    """Return `values`, of any shape, as a ttnn tensor of `dtype` holds them (block floats in tile layout).

    dtype: ttnn's, or its name, such as "bfloat8_b". With a name this module works without ttnn.
    The result has the narrowest torch dtype that holds it exactly:

    - bfloat16 for bfloat16, bfloat8_b and bfloat4_b.
    - int32 for uint16.
    - int64 for uint32, because torch's own uint32 can neither index nor be added.
    - float32, int32 and uint8 for themselves.

    Never changes `values`. Returns `values` itself if there is nothing to do, as for bfloat16 in bfloat16.
    """
    rounded = _ROUND[dtype.upper() if isinstance(dtype, str) else dtype.name]
    if values.numel() > 1 and not any(values.stride()):  # one value, expanded: stays one value
        return rounded(values[(0,) * values.dim()]).expand(values.shape)
    return rounded(values)


def _to_bfloat16(values: torch.Tensor) -> torch.Tensor:
    if values.dtype == torch.bfloat16:
        return values
    values = values.to(torch.float32)
    rounded = values.to(torch.bfloat16)
    if values.sum().isnan():  # a NaN, or infinities of both signs: one cheap pass excludes both
        # torch gives NaNs other bits, which differ within a tensor.
        rounded.masked_fill_(values.isnan(), torch.nan)
    return rounded


def to_block_float(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Round to a block float, as bfloat16. bits: of a code, without its sign: 7 for bfloat8_b, 3 for bfloat4_b."""
    if values.numel() == 0:
        return values.to(torch.bfloat16)
    width = values.shape[-1] if values.dim() else 1
    padding = -width % BLOCK
    rows = values.reshape(-1, width)
    if padding:
        rows = torch.nn.functional.pad(rows.to(torch.float32), (0, padding))
    blocks = rows.contiguous().view(-1, BLOCK)
    rounded = torch.empty_like(blocks, dtype=torch.bfloat16)
    scratch = torch.empty_like(blocks[:_CHUNK], dtype=torch.float32)
    for chunk, result in zip(blocks.split(_CHUNK), rounded.split(_CHUNK)):
        _round_chunk(chunk.to(torch.float32), bits, scratch[: len(chunk)], result)
    if padding:
        rounded = rounded.view(-1, width + padding)[:, :width].contiguous()
    return rounded.reshape(values.shape)


def _round_chunk(blocks: torch.Tensor, bits: int, scratch: torch.Tensor, result: torch.Tensor) -> None:
    """Round float32 `blocks` [n, 16] into bfloat16 `result`, in eight passes over the values in `scratch`."""
    torch.abs(blocks, out=scratch)
    shared = scratch.view(torch.int32).amax(1, keepdim=True) >> _FRACTION_BITS
    ordinary = shared.clamp(*_ORDINARY)
    # A unit in the last place of the block's largest float32: 2 ** (shared - 127 - 23).
    unit = ((ordinary - _FRACTION_BITS) << _FRACTION_BITS).view(torch.float32)
    # A unit in the last place of a code, counted in such units.
    step = float(1 << (_FRACTION_BITS + 1 - bits))
    # Adding this to a value up to 2**24 leaves no room for bits below a step. The processor rounds them, ties to even.
    magic = 1.5 * 2.0**_FRACTION_BITS * step
    largest = ((1 << bits) - 1) * step
    torch.div(blocks, unit, rounding_mode="trunc", out=scratch)
    scratch.add_(magic).sub_(magic)  # gives +0, never -0
    scratch.clamp_(-largest, largest).mul_(unit)
    result.copy_(scratch)

    if not torch.equal(shared, ordinary):
        special = ((shared != ordinary) & (shared != 0)).squeeze(1)  # a block of zeros and subnormals is zeros already
        if special.any():
            result[special] = _round_special(blocks[special], bits)


def _round_special(blocks: torch.Tensor, bits: int) -> torch.Tensor:
    """Round any block with integer arithmetic: some ten times slower than `_round_chunk`, and rarely needed."""
    code = blocks.view(torch.int32)
    sign = code & _SIGN
    exponent = (code >> _FRACTION_BITS) & _EXPONENT
    shared = exponent.amax(1, keepdim=True)
    mantissa = ((code & _FRACTION) | _HIDDEN_ONE) >> (shared - exponent).clamp(max=_FRACTION_BITS + 1)
    dropped = _FRACTION_BITS + 1 - bits
    is_odd = (mantissa >> dropped) & 1
    mantissa = (mantissa + (1 << (dropped - 1)) - 1 + is_odd) >> dropped
    mantissa = mantissa.clamp(max=(1 << bits) - 1) * (exponent != 0)
    # The mantissa as a float has an exponent that counts its bits. The exponent of its lowest bit is added here.
    lowest = shared - _BIAS - (bits - 1)
    rounded = mantissa.to(torch.float32).view(torch.int32) + (lowest << _FRACTION_BITS)
    rounded = torch.where(mantissa == 0, 0, rounded | sign)
    return (rounded >> 16).to(torch.int16).view(torch.bfloat16)  # the lower half is zero


def _to_unsigned(values: torch.Tensor, bits: int, holder: torch.dtype) -> torch.Tensor:
    largest = (1 << bits) - 1
    whole = values.to(torch.int64)
    if values.is_floating_point() and bits < 32:
        return whole.clamp(0, largest).to(holder)
    return (whole & largest).to(holder)


_ROUND: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "BFLOAT16": _to_bfloat16,
    "BFLOAT8_B": partial(to_block_float, bits=7),
    "BFLOAT4_B": partial(to_block_float, bits=3),
    "FLOAT32": lambda values: values.to(torch.float32),
    "INT32": lambda values: values.to(torch.int32),
    "UINT32": partial(_to_unsigned, bits=32, holder=torch.int64),
    "UINT16": partial(_to_unsigned, bits=16, holder=torch.int32),
    "UINT8": partial(_to_unsigned, bits=8, holder=torch.uint8),
}

"""What a ttnn tensor of a dtype makes of values: the rounding of ttnn's own host packing, in torch, bit for bit.

bfloat16    round to nearest, ties to even; subnormals stay; any NaN becomes the one quiet positive NaN (0x7FC0).
bfloat8_b   16 neighbours in a row share the exponent of the largest; 7 bits are left for each (bfloat4_b: 3), of which
bfloat4_b   the first is the 1 that a float does not write. Values are taken as float32, never through bfloat16:
            1. bits that a shift to the shared exponent pushes out of float32's 24 are cut off, not rounded: this can
               make a tie of what lay just above one;
            2. round to nearest, ties to even; what would carry into one more bit keeps the largest code instead;
            3. zero, minus zero and what rounds to zero become plus zero; subnormals count as zero.
            Infinity and NaN take the shared exponent 255: ordinary neighbours become zero, infinity stays, a NaN stays
            one if its highest mantissa bits say so and is infinity otherwise. No code is subnormal.
integers    cut towards zero; integers beyond the range wrap round, floats beyond that of uint8 and uint16 saturate.
            (ttnn leaves floats beyond the range to the processor; this is what float32 below 2**31 gives.)

Other dtypes are taken as float32. ttnn.from_torch does so too, but for those that ttnn has no name for (float64,
float16, int64, int16): it makes bfloat16 of them on their way to a block float, and so rounds twice. We do not: what is
rounded here are results of ops, and a chip has none of those dtypes to begin with.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import ttnn

BLOCK = 16  # neighbours that share an exponent: a row of a tile's face
_CHUNK = 8192  # blocks rounded at a time, 512 KiB of float32: stays in a core's cache, and call overhead stays small

_SIGN, _EXPONENT, _FRACTION, _HIDDEN_ONE = -(1 << 31), 0xFF, 0x7FFFFF, 0x800000  # of a float32
_FRACTION_BITS, _BIAS = 23, 127
# Shared exponents (biased) for which `_round_chunk` can compute in float32: below, a unit in the last place is
# subnormal, above are infinity and NaN.
_ORDINARY = (24, 254)


def round_to(values: torch.Tensor, dtype: ttnn.DataType) -> torch.Tensor:
    """What a ttnn tensor of `dtype` (tile layout for block floats) holds after it was given `values`, of any shape.

    It comes in the narrowest torch dtype that holds it exactly: bfloat16 for bfloat16, bfloat8_b and bfloat4_b,
    float32, int32, int32 for uint16, uint8; and int64 for uint32, since torch's own uint32 can neither index nor be
    added. Never changes `values`; returns `values` itself where there is nothing to do, as for bfloat16 in bfloat16.
    """
    if values.numel() > 1 and not any(values.stride()):  # one value, expanded: stays one value
        return _ROUND[dtype.name](values[(0,) * values.dim()]).expand(values.shape)
    return _ROUND[dtype.name](values)


def _to_bfloat16(values: torch.Tensor) -> torch.Tensor:
    if values.dtype == torch.bfloat16:
        return values
    values = values.to(torch.float32)
    rounded = values.to(torch.bfloat16)
    if values.sum().isnan():  # a NaN, or infinities of both signs: one cheap pass tells that neither is there
        # torch gives NaNs other bits, and not the same ones everywhere in a tensor.
        rounded.masked_fill_(values.isnan(), torch.nan)
    return rounded


def to_block_float(values: torch.Tensor, bits: int) -> torch.Tensor:
    """bits: of a code, without its sign: 7 for bfloat8_b, 3 for bfloat4_b. -> bfloat16."""
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
    """Round float32 `blocks` [n, 16] into bfloat16 `result`, in eight passes over the values, in `scratch`."""
    torch.abs(blocks, out=scratch)
    shared = scratch.view(torch.int32).amax(1, keepdim=True) >> _FRACTION_BITS
    ordinary = shared.clamp(*_ORDINARY)
    # Of the block's largest float32: a unit in the last place, 2 ** (shared - 127 - 23).
    unit = ((ordinary - _FRACTION_BITS) << _FRACTION_BITS).view(torch.float32)
    # A unit in the last place of a code, counted in those.
    step = float(1 << (_FRACTION_BITS + 1 - bits))
    # Adding this to a value up to 2**24 leaves no room for bits below a step: the processor rounds them, to even.
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
    """The same in integers, for any block at all; some ten times slower, and rarely needed."""
    code = blocks.view(torch.int32)
    sign = code & _SIGN
    exponent = (code >> _FRACTION_BITS) & _EXPONENT
    shared = exponent.amax(1, keepdim=True)
    mantissa = ((code & _FRACTION) | _HIDDEN_ONE) >> (shared - exponent).clamp(max=_FRACTION_BITS + 1)
    dropped = _FRACTION_BITS + 1 - bits
    is_odd = (mantissa >> dropped) & 1
    mantissa = (mantissa + (1 << (dropped - 1)) - 1 + is_odd) >> dropped
    mantissa = mantissa.clamp(max=(1 << bits) - 1) * (exponent != 0)
    # The mantissa as a float has an exponent that counts its bits; what is missing is the exponent of its lowest bit.
    lowest = shared - _BIAS - (bits - 1)
    rounded = mantissa.to(torch.float32).view(torch.int32) + (lowest << _FRACTION_BITS)
    rounded = torch.where(mantissa == 0, 0, rounded | sign)
    return (rounded >> 16).to(torch.int16).view(torch.bfloat16)  # the lower half is zero


def _to_float32(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.float32)


def _to_int32(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.int32)


def _to_unsigned(values: torch.Tensor, bits: int, holder: torch.dtype) -> torch.Tensor:
    if values.dtype == torch.uint8:  # fits every unsigned dtype
        return values.to(holder)
    largest = (1 << bits) - 1
    whole = values.to(torch.int64)
    if values.is_floating_point() and bits < 32:
        return whole.clamp(0, largest).to(holder)
    return (whole & largest).to(holder)


_ROUND: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "BFLOAT16": _to_bfloat16,
    "BFLOAT8_B": partial(to_block_float, bits=7),
    "BFLOAT4_B": partial(to_block_float, bits=3),
    "FLOAT32": _to_float32,
    "INT32": _to_int32,
    "UINT32": partial(_to_unsigned, bits=32, holder=torch.int64),
    "UINT16": partial(_to_unsigned, bits=16, holder=torch.int32),
    "UINT8": partial(_to_unsigned, bits=8, holder=torch.uint8),
}

"""The matrix engine's sums in a bfloat16 dest, to the bit.

An instruction adds the products of sixteen rows of the inner dim to dest, in three steps:

1. Each product is rounded to 2**-10 of the power of two of the largest of its group of eight (aligned.py).
2. Both groups' sums and dest are rounded to 2**-10 of the largest power of two among all products and dest. Ties of
   the sums go up, ties of dest away from zero.
3. Their sum is rounded to eight significant bits, ties away from zero.

Every fidelity phase is an instruction of its own, also where its bits are zeros: a large product's place then cuts a
small dest. Records of matmuls, rms_norm and layer_norm are met to the bit in every fidelity.
"""

from functools import cache

import torch

from golden_mesh.arithmetic.aligned import AT_ONCE, GROUP, HALF, PLACES, PLACES_OF_PHASES, TIES_AWAY, power
from golden_mesh.arithmetic.engine import BFLOAT16, SRC_A, SRC_A_FIRST, SRC_B, SRC_B_FIRST, keep, to_bfloat16_

TILE = 32
_SMALLEST = 2.0**-100  # a power of two below which nothing counts
_ROUNDING = 1.5 * 2.0 ** (23 - PLACES)  # times a power of two: rounds what is added to it


def multiply(a: torch.Tensor, b: torch.Tensor, phases: int) -> torch.Tensor:
    """Return a (through SrcA) * b (through SrcB) as dest holds it, float32. Shapes broadcast.

    float32 is unpacked to bfloat16: all but its first eight bits are cut. Powers of two only scale a product, so signs
    and fractions have a table.
    """
    a, b = torch.broadcast_tensors(_bits(a), _bits(b))
    pairs = _code(a).int() << 8 | _code(b)
    result = _products(phases).index_select(0, pairs.flatten()).view(pairs.shape)
    return result.mul_(_power(a)).mul_(_power(b))


def _bits(x: torch.Tensor) -> torch.Tensor:
    x = x if x.dtype == torch.bfloat16 else keep(x.float(), BFLOAT16).bfloat16()
    return x.view(torch.int16)


def _code(bits: torch.Tensor) -> torch.Tensor:
    """Return sign and fraction of a bfloat16's bits: eight bits."""
    return bits >> 8 & 0x80 | bits & 0x7F


def _power(bits: torch.Tensor) -> torch.Tensor:
    return (bits & 0x7F80).view(torch.bfloat16).float()


@cache
def _products(phases: int) -> torch.Tensor:
    """Return the products of all pairs of codes with the exponent 0, [256 * 256]."""
    codes = torch.arange(256, dtype=torch.int32)
    values = (codes & 0x80) << 24 | 127 << 23 | (codes & 0x7F) << 16
    values = values.view(torch.float32)
    b, a = torch.broadcast_tensors(values, values[:, None])
    return _add_products(torch.zeros(a.shape), b.unsqueeze(0), a.unsqueeze(0), phases).flatten()


def sums_of_rows(x: torch.Tensor, factor: float, phases: int) -> torch.Tensor:
    """Return the sums of x * factor over rows, [..., K] -> [..., 1], as dest holds them. x goes through SrcB."""
    factors = torch.full((1, x.shape[-1], 1), factor)
    return product(x.reshape(1, -1, x.shape[-1]), factors, phases, x.shape[-1]).reshape(*x.shape[:-1], 1)


def product(a: torch.Tensor, b: torch.Tensor, phases: int, block: int, biased: bool = False) -> torch.Tensor:
    """Return a [B, M, K] (through SrcB) @ b [B, K, N] (through SrcA), float32.

    block: tiles of the inner dim after which dest is packed and added to the sum in L1, to nearest even. The last
    block starts from that sum, unless a bias is added to it (`biased`).
    """
    padding = -a.shape[2] % TILE
    a = torch.nn.functional.pad(a.float(), (0, padding)).permute(2, 0, 1)[..., None]  # [K, B, M, 1]
    b = torch.nn.functional.pad(b.float(), (0, 0, 0, padding)).transpose(0, 1)[:, :, None]
    columns = max(1, AT_ONCE // (a.shape[1] * a.shape[2]))
    parts = [_product(a, part, phases, block, biased) for part in b.split(columns, 3)]
    return torch.cat(parts, -1)


def _product(a: torch.Tensor, b: torch.Tensor, phases: int, block: int, biased: bool) -> torch.Tensor:
    tiles = list(zip(a.split(TILE), b.split(TILE)))
    shape = torch.broadcast_shapes(a.shape[1:], b.shape[1:])
    in_l1 = None
    for first in range(0, len(tiles), block):
        is_last = first + block >= len(tiles) and not biased
        dest = in_l1 if is_last and in_l1 is not None else torch.zeros(shape)
        for left, right in tiles[first : first + block]:
            dest = _add_products(dest, left, right, phases)
        if not is_last:
            in_l1 = dest if in_l1 is None else (in_l1 + dest).bfloat16().float()
    return in_l1 if biased else dest


def _add_products(dest: torch.Tensor, a: torch.Tensor, b: torch.Tensor, phases: int) -> torch.Tensor:
    """Return dest with the products of a tile's inner dim added: a [k, ...] (SrcB) and b [k, ...] (SrcA), k up to 32."""
    a, b = a.contiguous(), b.contiguous()
    powers = power(a), power(b)
    first_a, first_b = keep(a, SRC_B_FIRST), keep(b, SRC_A_FIRST)
    rest_a, rest_b = keep(a, SRC_B) - first_a, keep(b, SRC_A) - first_b
    parts = (first_a, first_b), (first_a, rest_b), (rest_a, first_b), (rest_a, rest_b)
    for (left, right), place in zip(parts[:phases], PLACES_OF_PHASES):
        for at in range(0, len(a), HALF):
            groups = [
                _group(slice(start, start + GROUP), left, right, powers, place)
                for start in range(at, min(at + HALF, len(a)), GROUP)
            ]
            dest = _added(dest, groups)
    return dest


def _group(
    at: slice, left: torch.Tensor, right: torch.Tensor, powers, place: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of a group's products, and the power of two of the largest."""
    largest = None
    for of_a, of_b in zip(powers[0][at], powers[1][at]):
        pair = of_a * of_b
        largest = pair if largest is None else torch.maximum(largest, pair)
    largest = (largest * place).clamp_(min=_SMALLEST)
    start = largest * _ROUNDING
    total = start.clone()
    for of_a, of_b in zip(left[at] * TIES_AWAY, right[at]):
        total.addcmul_(of_a, of_b)
    return total.sub_(start), largest


def _added(dest: torch.Tensor, groups: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    common = power(dest).clamp_(min=_SMALLEST)
    for _, largest in groups:
        common = torch.maximum(common, largest)
    step = common * 2.0**-PLACES
    total = (dest / step).mul_(1 + 2.0**-12).add_(0.5).floor_()
    for of_group, _ in groups:
        total += (of_group / step).add_(0.5).floor_()
    return to_bfloat16_(total.mul_(step))

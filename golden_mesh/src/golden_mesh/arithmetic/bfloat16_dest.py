"""The matrix engine's sums in a bfloat16 dest, to the bit.

An instruction adds the products of sixteen rows of the inner dim to dest, in three steps:

1. Each product is rounded to 2**-10 of the power of two of the largest of its group of eight (aligned.py).
2. Both groups' sums and dest are rounded to 2**-10 of the largest power of two among all products and dest. Ties of
   the sums go up, ties of dest away from zero.
3. Their sum is rounded to eight significant bits, ties away from zero.

Every fidelity phase is an instruction of its own, also where its bits are zeros: a large product's place then cuts a
small dest. Records of matmuls, rms_norm and layer_norm are met to the bit in every fidelity.
"""

import itertools
from functools import cache, partial
from typing import Iterator

import numpy as np
import torch
import torch.nn.functional as F

from golden_mesh.arithmetic.aligned import GROUP, HALF, PLACES, PLACES_OF_PHASES, TIES_AWAY
from golden_mesh.arithmetic.engine import BFLOAT16, FLOAT32, SRC_A, SRC_A_FIRST, SRC_B, SRC_B_FIRST, keep
from golden_mesh.arithmetic.packer import pack
from golden_mesh.arithmetic.parts import common_shape, constant, in_parts

TILE = 32
AT_ONCE, COLUMNS = 1 << 15, 512  # elements of a result at a time, columns of them: they stay in the processor's cache
FEW_PRODUCTS = 1 << 20  # elements of one operand times those of the other
_SMALLEST, _TIES_AWAY = np.float32(2.0**-100), np.float32(TIES_AWAY)  # a power of two below which nothing counts
_TIES_OF_DEST, _HALF, _STEP = np.float32(1 + 2.0**-12), np.float32(0.5), np.float32(2.0**-PLACES)
_EXPONENT, _HALF_OF_LAST, _BFLOAT16 = np.int32(0xFF << 23), np.int32(1 << 15), np.int32(-1 << 16)
_EIGHT = constant(8)
_BYTE, _SIGN, _FRACTION, _POWER = torch.tensor((8, 0x80, 0x7F, 0x7F80), dtype=torch.int16)  # beside bfloat16's bits
_ROUNDING = np.float32(1.5 * 2.0 ** (23 - PLACES))  # times a power of two: rounds what is added to it


def multiply(a: torch.Tensor, b: torch.Tensor, phases: int) -> torch.Tensor:
    """Return a (through SrcA) * b (through SrcB) as dest holds it, float32. Shapes broadcast.

    float32 is unpacked to bfloat16: all but its first eight bits are cut. Powers of two only scale a product, so signs
    and fractions have a table.
    """
    return in_parts(partial(_multiply, phases=phases), a, b)


def _multiply(a: torch.Tensor, b: torch.Tensor, phases: int) -> torch.Tensor:
    a, b = _bits(a), _bits(b)
    pairs = _code(a).int().bitwise_left_shift_(_EIGHT) | _code(b).int()
    result = _products(phases).index_select(0, pairs.flatten()).view(pairs.shape)
    return result.mul_(_power(a)).mul_(_power(b))


def _bits(x: torch.Tensor) -> torch.Tensor:
    x = x if x.dtype == torch.bfloat16 else keep(x.float(), BFLOAT16).bfloat16()
    return x.view(torch.int16)


def _code(bits: torch.Tensor) -> torch.Tensor:
    """Return sign and fraction of a bfloat16's bits: eight bits."""
    return (bits >> _BYTE).bitwise_and_(_SIGN).bitwise_or_(bits & _FRACTION)


def _power(bits: torch.Tensor) -> torch.Tensor:
    return (bits & _POWER).view(torch.bfloat16).float()


@cache
def _products(phases: int) -> torch.Tensor:
    """Return the products of all pairs of codes with the exponent 0, [256 * 256]."""
    codes = np.arange(256, dtype=np.int32)
    values = ((codes & 0x80) << 24 | 127 << 23 | (codes & 0x7F) << 16).view(np.float32)
    b, a = np.broadcast_arrays(values, values[:, None])
    left, right = np.zeros((2, HALF, 1, 256, 256), np.float32)
    left[0], right[0] = b, a
    (instructions,) = _tiles(left, right, phases)
    return torch.from_numpy(_added(np.zeros((1, 1, *a.shape), np.float32), instructions)).flatten()


def sums_of_rows(x: torch.Tensor, factor: float, phases: int) -> torch.Tensor:
    """Return the sums of x * factor over rows, [..., K] -> [..., 1], as dest holds them. x goes through SrcB."""
    factors = torch.full((1, x.shape[-1], 1), factor)
    return product(x.reshape(1, -1, x.shape[-1]), factors, phases, x.shape[-1]).reshape(*x.shape[:-1], 1)


def product(
    a: torch.Tensor, b: torch.Tensor, phases: int, block: int, biased: bool = False, by_faces: bool = False, spills=None
) -> torch.Tensor:
    """Return a [B, M, K] (through SrcB) @ b [B, K, N] (through SrcA), float32.

    block: tiles of the inner dim after which dest is packed and added to the sum in L1, to nearest even. The last
    block starts from that sum, unless a bias is added to it (`biased`). by_faces: all phases of one half of a tile come
    before the other half, as in sums of columns. spills: a Kernel's.
    """
    padding = -a.shape[2] % TILE
    if padding:
        a, b = F.pad(a, (0, padding)), F.pad(b, (0, 0, 0, padding))
    batch = max(len(a), len(b))
    a, b = (x if len(x) == batch else x.expand(batch, -1, -1) for x in (a, b))
    rows, inner = a.shape[1:]
    transposed = a.float().reshape(batch * rows, inner).t().contiguous()  # numpy's copy takes three times as long
    a = transposed.numpy().reshape(inner, batch, rows, 1)  # [K, B, M, 1]
    b = b.float().numpy().swapaxes(0, 1)[:, :, None]  # [K, B, 1, N]
    result = np.empty((batch, a.shape[2], b.shape[3]), np.float32)
    columns = min(result.shape[2], COLUMNS)
    rows = min(result.shape[1], max(1, AT_ONCE // columns))
    batches = max(1, AT_ONCE // (rows * columns))
    steps = (range(0, extent, step) for extent, step in zip(result.shape, (batches, rows, columns)))
    with np.errstate(all="ignore"):
        for i, j, k in itertools.product(*steps):
            left, right = a[:, i : i + batches, j : j + rows], b[:, i : i + batches, :, k : k + columns]
            some = _product(left, right, phases, block, biased, by_faces, spills)
            result[i : i + batches, j : j + rows, k : k + columns] = some
    return torch.from_numpy(result)


def _product(a: np.ndarray, b: np.ndarray, phases: int, block: int, biased: bool, by_faces: bool, spills) -> np.ndarray:
    count = len(a) // TILE
    in_l1, dest = None, np.zeros((1, *common_shape(a.shape[1:], b.shape[1:])), np.float32)
    at_once = TILE * max(1, AT_ONCE // dest.size)
    parts = ((a[k : k + at_once], b[k : k + at_once]) for k in range(0, len(a), at_once))
    tiles = (tile for left, right in parts for tile in _tiles(left, right, phases, by_faces))
    for tile, instructions in enumerate(tiles):
        if tile and tile % block == 0 and spills:
            dest = pack(torch.from_numpy(dest), spills).float().numpy()
        elif tile and tile % block == 0:
            in_l1 = dest if in_l1 is None else _nearest_even(in_l1 + dest)
            is_last = tile + block >= count and not biased
            dest = in_l1 if is_last else np.zeros_like(dest)
        dest = _added(dest, instructions)
    return (dest if in_l1 is None or not biased else _nearest_even(in_l1 + dest))[0]


def _nearest_even(x: np.ndarray) -> np.ndarray:
    return torch.from_numpy(x).bfloat16().float().numpy()


Instruction = tuple[np.ndarray, np.ndarray, bool]


def _tiles(a: np.ndarray, b: np.ndarray, phases: int, by_faces: bool = False) -> Iterator[Iterator[Instruction]]:
    """Yield the instructions of each tile of the inner dim, phase by phase. a [k, ...] (SrcB) and b [k, ...] (SrcA).

    k is a half, or whole tiles. An instruction has room for dest and the sums of its two groups [3, ...], the largest
    power of two of the groups' products [1, ...], and whether a sum may be other than 0.
    """
    halves = min(len(a) // HALF, TILE // HALF)
    shape = -1, halves, 2, GROUP
    a, b = (np.ascontiguousarray(x).reshape(*shape, *x.shape[1:]) for x in (a, b))  # [tiles, halves, groups, 8, ...]
    largest = _largest_products(*(_masked(x, _EXPONENT) for x in (a, b)))
    first_a, first_b = _masked(a, _first(SRC_B_FIRST)), _masked(b, _first(SRC_A_FIRST))
    rest_a, rest_b = _masked(a, _first(SRC_B)) - first_a, _masked(b, _first(SRC_A)) - first_b
    operands = (first_a, first_b), (first_a, rest_b), (rest_a, first_b), (rest_a, rest_b)
    parts = (_sums(*pair, largest * place) for pair, place in zip(operands[:phases], PLACES_OF_PHASES))
    if len(a) > 1 or by_faces:
        parts = list(parts)  # else one phase's sums at a time, which stay in the processor's cache
    for tile in range(len(a)):
        order = ((part, half) for part in parts for half in range(halves))
        order = sorted(order, key=lambda step: step[1]) if by_faces else order
        yield ((sums[tile, half], scales[tile, half], adds) for (sums, scales, adds), half in order)


def _sums(left: np.ndarray, right: np.ndarray, largest: np.ndarray) -> Instruction:
    """Return the instructions of a phase, [tiles, halves, ...]."""
    largest = np.maximum(largest, _SMALLEST)
    sums = np.zeros((*largest.shape[:2], 3, *largest.shape[3:]), np.float32)
    adds = bool(right.any())
    if adds:
        sums[:, :, 1:] = _rounded_sums(left * _TIES_AWAY, right, largest * _ROUNDING)
    return sums, largest.max(2, keepdims=True), adds


def _largest_products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the largest product of each group."""
    if a.size * b.size <= FEW_PRODUCTS:
        return (a * b).max(3)
    pairs = _members(a, b)
    largest = torch.mul(*next(pairs))
    for pair in pairs:
        torch.maximum(largest, torch.mul(*pair), out=largest)
    return largest.numpy()


def _rounded_sums(a: np.ndarray, b: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Return the sums of each group's products, each rounded to the last place of `start`."""
    if a.size * b.size <= FEW_PRODUCTS:
        start = start[:, :, :, None]
        return (a * b + start - start).sum(3)
    total = torch.from_numpy(start.copy())
    for pair in _members(a, b):
        total.addcmul_(*pair)
    return total.numpy() - start


def _members(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the first members of all groups, the second ones, and so on."""
    return zip(*(torch.from_numpy(x).unbind(3) for x in (a, b)))


def _added(dest: np.ndarray, instructions: Iterator[Instruction]) -> np.ndarray:
    """Return dest [1, ...] with the sums of instructions added, one after the other."""
    held = dest.copy()
    step = np.empty_like(held)
    bits, power_bits = held.view(np.int32), step.view(np.int32)
    for terms, largest, adds in instructions:
        np.bitwise_and(bits, _EXPONENT, out=power_bits)
        if not adds and (largest <= step).all() and step.max() < np.inf:
            continue  # the eight bits of dest are whole steps
        np.maximum(step, largest, out=step)
        np.multiply(step, _STEP, out=step)
        np.multiply(held[0], _TIES_OF_DEST, out=terms[0])
        np.divide(terms, step, out=terms)
        np.add(terms, _HALF, out=terms)
        np.floor(terms, out=terms)
        np.add.reduce(terms, 0, out=held[0])
        np.multiply(held, step, out=held)
        np.add(bits, _HALF_OF_LAST, out=bits)
        np.bitwise_and(bits, _BFLOAT16, out=bits)
    return held


def _first(bits: int) -> np.int32:
    """Return the mask of a float32's first significant bits."""
    return np.int32(-1 << (FLOAT32 - bits))


def _masked(x: np.ndarray, mask: np.int32) -> np.ndarray:
    """Return float32 x with the bits of the mask."""
    return (x.view(np.int32) & mask).view(np.float32)

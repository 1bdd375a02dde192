"""Matrix products: a (through SrcB) times b (through SrcA). Each row is independent of the other rows.

Torch's product of a row may differ in its last bit with the number of rows beside it. MKL has other loops for
fewer than 4 rows or for a few columns. MKL also divides rows and columns among its threads, and cuts long
sums by the size of the whole.

So rows are padded with zeros to multiples of 4, and columns to multiples of a tile. Sums are cut at fixed
places. A row alone and a row among others then go through equal additions in equal order, for any number of
threads. Neighboring rows that are equal, as those of slots without a user, are multiplied once.

With a float32 dest the sum is torch's, in float32, over operands cut by the fidelity. Two parts of the chip's
own sum are missing:

- A chip aligns products in groups of eight (aligned.py): noise of 2e-4 to 3e-4 of the result.
- HiFi3 leaves out a part of each product: 3e-5 of the result.

With the switch `sums` at "exact" a float32 dest has these parts, too (aligned.py).
"""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Iterable, Iterator

import torch
import torch.nn.functional as F

from golden_mesh import switches
from golden_mesh.arithmetic import aligned, bfloat16_dest, engine, special
from golden_mesh.arithmetic.block_floats import BlockFloats
from golden_mesh.arithmetic.kernel import Kernel
from golden_mesh.arithmetic.packer import pack
from golden_mesh.arithmetic.parts import common_shape
from golden_mesh.arithmetic.plain import in_float32, is_plain

ROWS, COLUMNS = 4, 32  # rows and columns are padded to multiples of these
STEP = 64  # rows of a wide weight widened at a time
WIDENED = 1 << 17  # elements of a narrow one
STRIP = 1 << 18  # elements of both: they stay in a core's second cache, and threads seldom wait for Python
LARGE = 1 << 20  # elements of a weight from which on it pays to look for equal rows and to start threads
DEST = 1 << 17  # elements of a bfloat16 dest at a time: they and the operands stay in a core's second cache
FEWEST, MOST = 32, 256  # rows of that part for which its columns are chosen: torch is slower with fewer
TILE, FACE = 32, 16  # the engine takes a tile of the inner dim at a time, in two halves


def product(
    a: torch.Tensor, b: torch.Tensor | BlockFloats, kernel: Kernel, *, bits: int = engine.FLOAT32,
    block: int | None = None, biased: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Return a [..., M, K] @ b [..., K, N] in float32, as dest holds it.

    A b of one matrix is a weight for all batches of a. Otherwise the batches of a and b broadcast. bits:
    significant bits of a float32 a.

    block: tiles of the inner dim that dest sums before it is packed and added to the sum in L1. Its default
    is the choice of ttnn's own program configs. biased: a bias is added to the sum in L1. Without a bias the last
    block starts from that sum instead.
    """
    if 0 in (*a.shape, *b.shape):
        return torch.zeros(*common_shape(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    if not kernel.in_l1 and kernel.spills is None:
        block = a.shape[-1]  # more tiles than there are
    block = block or (2 if -(-a.shape[-1] // TILE) % 2 == 0 else 1)
    result = _product(a, b, kernel, bits, block, biased)
    if is_plain() or math.isfinite(result.sum()):
        return result
    if not kernel.wide:
        bits = engine.BFLOAT16
    b = b.unpacked() if isinstance(b, BlockFloats) else b
    left = engine.keep(a.float(), bits) if a.dtype == torch.float32 and bits < engine.FLOAT32 else a
    return special.repaired_product(result, left, b, kernel, block, biased)


def _product(a: torch.Tensor, b: torch.Tensor, kernel: Kernel, bits: int, block: int, biased: bool) -> torch.Tensor:
    exact = switches.current.sums == "exact" and not is_plain()
    if not kernel.wide:  # float32 is unpacked to bfloat16
        a, b = (engine.keep(x, engine.BFLOAT16) if x.dtype == torch.float32 else x for x in (a, b))
    if isinstance(b, BlockFloats) and (exact or not kernel.wide):
        b = b.unpacked()
    if b.numel() == b.shape[-2] * b.shape[-1]:
        batch = max(a.shape[:-2], b.shape[:-2], key=len)  # b's batch is all ones and may have the higher rank
        weight = b if isinstance(b, BlockFloats) else b.reshape(b.shape[-2:])
        rows = a.reshape(-1, a.shape[-1])
        if exact:
            rows = _exact_product(rows[None], weight[None], kernel, block, biased)
        else:
            rows = _weighted(rows, weight, kernel, block, biased)
        return rows.reshape(*batch[: len(batch) - a.dim() + 2], *a.shape[:-1], b.shape[-1])
    if kernel.wide and not exact:
        a, b = engine.source_b(a, kernel, bits), engine.source_a(b, kernel)
    batch = common_shape(a.shape[:-2], b.shape[:-2])
    left, right = (x.expand(*batch, *x.shape[-2:]).flatten(0, -3) for x in (a, b))
    result = (_exact_product if exact else _batched)(left, right, kernel, block, biased)
    return result.reshape(*batch, a.shape[-2], b.shape[-1])


@in_float32(lambda a, b, *kernel: a.float() * b.float())
def multiply(a: torch.Tensor, b: torch.Tensor, kernel: Kernel, bits: int = engine.FLOAT32) -> torch.Tensor:
    """Return a (through SrcA) * b (through SrcB), element by element, as dest holds it. Shapes broadcast.

    bits: significant bits of float32 operands.
    """
    if not kernel.wide:
        result, bits = bfloat16_dest.multiply(a, b, kernel.phases), engine.BFLOAT16
    else:
        first, second = engine.source_a(a, kernel, bits), engine.source_b(b, kernel, bits)
        result = first * second
        if kernel.phases == 3:
            rest = _rest(first, engine.SRC_A_FIRST), _rest(second, engine.SRC_B_FIRST)  # their product is exact
            result.addcmul_(*rest, value=-1)

    def exact(a, b):
        a, b = (engine.keep(x, bits)[:, None] for x in (a, b))
        return special.dots(b, a, kernel.phases, kernel.wide)

    return special.repaired(result, exact, a, b)


def _rest(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Return float32 x without its first significant bits."""
    first = engine.keep(x, bits)
    return torch.sub(x, first, out=first)


@in_float32(lambda x, kernel, factor=1.0: x.float().sum(-1, keepdim=True) * factor)
def sums_of_rows(x: torch.Tensor, kernel: Kernel, factor: float = 1.0) -> torch.Tensor:
    """Return the sums of x * factor over rows, [..., W] -> [..., 1], as dest holds them. x goes through SrcB."""
    sums = (aligned.sums_of_rows if kernel.wide else bfloat16_dest.sums_of_rows)(x, factor, kernel.phases)
    if math.isfinite(sums.sum()):  # before a column is made
        return sums
    return special.repaired_product(sums, x, _column(x.shape[-1], factor), kernel)


def _column(rows: int, factor: float) -> torch.Tensor:
    return torch.full((), factor, dtype=torch.float32).expand(rows, 1)


@in_float32(lambda x, kernel, factor: x.float().sum(-1, keepdim=True) * factor)
def sums_of_tiles(x: torch.Tensor, kernel: Kernel, factor: float) -> torch.Tensor:
    """As `sums_of_rows`, where each element of x is the first of a tile's row, and the others are zeros."""
    if kernel.wide:  # a group of zeros adds nothing
        return aligned.sums_apart(x, factor, kernel.phases)
    return bfloat16_dest.sums_of_rows(F.pad(x.unsqueeze(-1), (0, TILE - 1)).flatten(-2), factor, kernel.phases)


@in_float32(lambda x, kernel, factors: x.float().sum(-2, keepdim=True) * factors)
def sums_of_columns(x: torch.Tensor, kernel: Kernel, factors: torch.Tensor | float) -> torch.Tensor:
    """Return the sums of x * factors over columns, [..., K, W] -> [..., 1, W], as dest holds them. x goes through SrcA.

    factors: of all columns, or [..., 1, 1].
    """
    if kernel.wide and isinstance(factors, float):
        sums = aligned.sums_of_columns(x, factors, kernel.phases)
        return special.repaired_product(sums, _column(x.shape[-2], factors).t(), x, kernel, by_faces=True)
    batch = x.reshape(-1, *x.shape[-2:]).float()
    factors = torch.as_tensor(factors).expand(*x.shape[:-2], 1, x.shape[-2]).reshape(-1, 1, x.shape[-2])
    if kernel.wide:
        sums = aligned.product(factors, batch, kernel.phases)
    else:
        sums = bfloat16_dest.product(factors, batch, kernel.phases, x.shape[-2], by_faces=True)
    sums = special.repaired_product(sums, factors, batch, kernel, by_faces=True)
    return sums.reshape(*x.shape[:-2], 1, x.shape[-1])


def _exact_product(a: torch.Tensor, b: torch.Tensor, kernel: Kernel, block: int, biased: bool) -> torch.Tensor:
    """Return a [B, M, K] @ b [B, K, N]."""
    if kernel.wide:
        return _by_blocks(a.float(), b.float(), kernel.phases, block * TILE, biased)
    return bfloat16_dest.product(a, b, kernel.phases, block, biased, spills=kernel.spills)


def _by_blocks(a: torch.Tensor, b: torch.Tensor, phases: int, rows: int, biased: bool) -> torch.Tensor:
    """Return a [B, M, K] @ b [B, K, N] in float32, a block of `rows` rows of b after the other.

    The sum in L1 takes a block's dest. The last block's dest starts from that sum, unless a bias is added to it.
    """
    in_l1 = None
    for first in range(0, b.shape[1], rows):
        is_last = first + rows >= b.shape[1] and not biased
        left, right = a[..., first : first + rows], b[:, first : first + rows]
        start = in_l1 if is_last else None
        dest = aligned.product(left, right, phases, start)
        in_l1 = dest if is_last or in_l1 is None else in_l1 + dest
    return in_l1


def _weighted(
    rows: torch.Tensor, weight: torch.Tensor | BlockFloats, kernel: Kernel, block: int, biased: bool
) -> torch.Tensor:
    """Return rows [M, K] @ weight [K, N].

    The weight is widened to float32 a few rows at a time. A product with few rows spends most of its time on this step.
    On processors without bfloat16 arithmetic torch's own bfloat16 product takes several times as long.
    """
    if not kernel.wide:
        return _batched(rows, weight, kernel, block, biased)
    columns = weight.shape[-1]
    places = None
    if len(rows) > ROWS and weight.numel() >= LARGE:
        bits = rows.contiguous().view(torch.int16 if rows.dtype == torch.bfloat16 else torch.int32)
        distinct, places = bits.unique_consecutive(dim=0, return_inverse=True)
        rows = distinct.view(rows.dtype).contiguous()
    count = len(rows)
    rows = _padded(engine.source_b(rows, kernel), below=-count % ROWS)
    step = max(STEP, WIDENED // (columns + -columns % COLUMNS) // STEP * STEP)
    threads = torch.get_num_threads() if weight.numel() >= LARGE else 1
    shares = threads * -(-columns * step // (STRIP * threads))  # as many for each thread
    strips = weight.split(-(-columns // (shares * COLUMNS)) * COLUMNS, 1)
    if threads == 1 or len(strips) == 1:
        parts = [_strip(rows, strip, kernel, step) for strip in strips]
    else:  # each thread takes the strips one after the other, and torch no further threads
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            parts = list(pool.map(lambda strip: _strip(rows, strip, kernel, step), strips))
    total = torch.cat(parts, 1)[:count] if len(parts) > 1 else parts[0][:count]
    return total if places is None else total[places]


def _strip(rows: torch.Tensor, weight: torch.Tensor | BlockFloats, kernel: Kernel, step: int) -> torch.Tensor:
    """Return rows @ a strip of the weight's columns. `step` rows of the strip are widened at a time, in one place."""
    inner, columns = weight.shape[-2:]
    place = torch.zeros(min(step, inner), columns + -columns % COLUMNS)
    total = torch.zeros(len(rows), place.shape[1])
    bits = engine.BFLOAT16 if weight.dtype == torch.bfloat16 else engine.FLOAT32
    for first in range(0, inner, step):
        part = place[: inner - first]
        if isinstance(weight, BlockFloats):
            weight.widen(slice(first, first + step), part)
        else:
            part[:, :columns] = weight[first : first + step]
        total.addmm_(rows[:, first : first + step], engine.source_a(part, kernel, bits))
    return weight.in_order(total) if isinstance(weight, BlockFloats) else total[:, :columns]


def _batched(a: torch.Tensor, b: torch.Tensor, kernel: Kernel, block: int, biased: bool) -> torch.Tensor:
    """Return a [(B,) M, K] @ b [(B,) K, N]. For a float32 dest both operands are cut already."""
    rows, columns = a.shape[-2], b.shape[-1]
    a, b = _padded(a, below=-rows % ROWS), _padded(b, right=-columns % COLUMNS)
    total = _float32_dest(a, b) if kernel.wide else _bfloat16_dest(a, b, kernel, block, biased)
    return total[..., :rows, :columns]


def _padded(x: torch.Tensor, below: int = 0, right: int = 0) -> torch.Tensor:
    return F.pad(x, (0, right, 0, below)) if below or right else x


def _float32_dest(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    total = torch.bmm(a[:, :, : 4 * STEP], b[:, : 4 * STEP])
    for start in range(4 * STEP, a.shape[2], 4 * STEP):
        total.baddbmm_(a[:, :, start : start + 4 * STEP], b[:, start : start + 4 * STEP])
    return total


def _bfloat16_dest(a: torch.Tensor, b: torch.Tensor, kernel: Kernel, block: int, biased: bool) -> torch.Tensor:
    """Return a [(B,) M, K] @ b [(B,) K, N], a part of dest after the other: each stays in the processor's cache."""
    rows, columns = a.shape[-2], b.shape[-1]
    if a.dim() == 3:
        at_once = DEST // (rows * columns)
        if at_once < 2:
            return torch.stack([_bfloat16_dest(*pair, kernel, block, biased) for pair in zip(a, b)])
        parts = zip(a.split(at_once), b.split(at_once))
        results = [_sum_of_tiles(left, _tiles(right, kernel), columns, kernel, block, biased) for left, right in parts]
        return results[0] if len(results) == 1 else torch.cat(results)
    width = DEST // min(max(rows, FEWEST), MOST) // COLUMNS * COLUMNS
    height = DEST // min(columns, width) // ROWS * ROWS
    if rows <= height and columns <= width:
        return _sum_of_tiles(a, _tiles(b, kernel), columns, kernel, block, biased)
    result = torch.empty(rows, columns)
    for right, strip in zip(b.split(width, 1), result.split(width, 1)):
        tiles = _tiles(right, kernel)
        tiles = tiles if rows <= height else list(tiles)
        for left, part in zip(a.split(height), strip.split(height)):
            part.copy_(_sum_of_tiles(left, tiles, part.shape[1], kernel, block, biased))
    return result


def _sum_of_tiles(
    a: torch.Tensor, tiles: Iterable[list], columns: int, kernel: Kernel, block: int, biased: bool
) -> torch.Tensor:
    """Sum nearly as the engine does (bfloat16_dest.py): 16 products at a time, phase by phase, each sum added to dest
    and rounded.

    Every `block` tiles dest is packed and added to the sum in L1 (to nearest even).
    """
    lefts = _halves(engine.source_b(a, kernel), -1, engine.SRC_B_FIRST, kernel.phases > 2)
    count = -(-a.shape[-1] // TILE)
    add_product = torch.Tensor.addmm_ if a.dim() == 2 else torch.Tensor.baddbmm_  # baddbmm_ takes longer for one
    sums, dest = None, torch.zeros(*a.shape[:-1], columns)
    for tile, rights in enumerate(tiles):
        if tile and tile % block == 0 and kernel.spills:
            dest = pack(dest, kernel.spills).float()
        elif tile and tile % block == 0:
            if sums is None:
                sums, dest = dest, torch.zeros_like(dest)
            else:
                sums.copy_(sums.add_(dest).bfloat16())
                dest.zero_()
            if tile + block >= count and not biased:
                dest = sums
        bits = dest.view(torch.int32)
        for phase in range(kernel.phases):
            for left, right in zip(lefts[phase >> 1][2 * tile : 2 * tile + 2], rights[phase & 1]):
                add_product(dest, left, right)
                engine.round_bits_(bits)
    return (sums + dest).bfloat16().float() if biased and sums is not None else dest


def _tiles(b: torch.Tensor, kernel: Kernel) -> Iterator[list[tuple[torch.Tensor, ...]]]:
    """Yield `_halves` of each tile of the inner dim of b [..., K, N]."""
    for tile in b.unsafe_split(TILE, -2):
        yield _halves(engine.source_a(tile, kernel), -2, engine.SRC_A_FIRST, kernel.phases > 1)


def _halves(x: torch.Tensor, dim: int, bits: int, both: bool) -> list[tuple[torch.Tensor, ...]]:
    """Return the first bits of an operand and, in its place, the others: what the phases multiply, 16 of `dim` each."""
    first = engine.keep(x, bits)
    parts = (first, x.sub_(first)) if both else (first,)
    return [part.unsafe_split(FACE, dim) for part in parts]  # split takes twice as long

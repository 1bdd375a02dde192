"""The modeled time of a device operation on a chip: what it moves and multiplies, and the law of its kind.

Everything here is a model. lab/prices.md has its parts and their sources. Pure functions.
"""

from dataclasses import dataclass, replace
from math import prod
from typing import Optional

from .collective_prices import SMALLEST, Collective
from .constants import Price, price
from .device_ops import TILE, Op, Tensor, ceil_div, tile_bytes
from .kinds import PHASES
from .laws import CLOCK, CYCLES_A_PHASE, GAP, Case
from .laws import DRAM as BYTES_A_MICROSECOND

DRAM = 1e6 * BYTES_A_MICROSECOND["wormhole"]  # bytes a second (tt-metal tech_reports/Saturating_DRAM_bandwidth)
TILE_FLOPS = 2 * TILE**3  # of the product of two tiles
EXCHANGES = ("ReduceScatter", "AllGather", "AllReduce", "AllToAll", "AllBroadcast", "PointToPoint")
LINK = 12.5e9  # bytes a second of a Wormhole's ethernet link, each direction
LINKS = {"wormhole": LINK, "blackhole": 4 * LINK}
# Of an operation without rows, beyond its bytes and products: what add, copy and reshard of a tile row take.
UNKNOWN_START = 2.5e-6
MATMULS = "Matmul", "AllGatherMatmul", "MatmulReduceScatter", "MinimalMatmul", "Conv2d"


@dataclass(frozen=True)
class Work:
    """What one device operation does on one chip."""

    streamed: int = 0  # bytes read from DRAM bank by bank, padding of the banks included
    scattered: int = 0  # bytes read from or written to interleaved DRAM
    needed: int = 0  # bytes of both without padding
    flops: int = 0  # padding included
    needed_flops: int = 0
    cores: int = 0  # cores that multiply
    fidelity: Optional[str] = None
    collective: Optional[Collective] = None

    @property
    def sent(self) -> int:
        return self.collective.sent if self.collective else 0


@dataclass(frozen=True)
class Bound:
    """Seconds of one device operation: what DRAM, the matrix engine and the links take at their full rates, and the
    price.
    """

    dram: float
    compute: float
    ethernet: float
    kernel: float
    price: Optional[Price]  # None: no row is of this kind
    gap: float = 1e-6 * GAP

    @property
    def seconds(self) -> float:
        return self.kernel + self.gap

    @property
    def floor(self) -> float:
        """The longest of the parts at the chip's full rates."""
        return max(self.dram, self.compute, self.ethernet)

    @property
    def source(self) -> str:
        """How many rows the price is from, and its error on rows of sources that the fit has not seen."""
        if not self.price:
            return "no rows"
        return f"{self.price.rows} rows, {self.price.error:.0%}"


def bound(op: Op, work: Work, links: int, case: Optional[Case], arch: str = "wormhole") -> Bound:
    """links: ethernet links of a collective between two chips."""
    found = price(case) if case else None
    dram, compute = work.needed / (1e6 * BYTES_A_MICROSECOND[arch]), 0.0
    if work.needed_flops:
        compute = work.needed_flops / matmul_peak(work.fidelity, work.cores, arch)
    ethernet = work.sent / (LINKS[arch] * links)
    kernel = 1e-6 * found.us if found else UNKNOWN_START + max(2 * dram, compute, ethernet)
    return Bound(dram, compute, ethernet, kernel, found)


def matmul_peak(fidelity: Optional[str], cores: int, arch: str = "wormhole") -> float:
    """FLOPs a second of the matrix engines. An operation without a fidelity counts as HiFi4."""
    return TILE_FLOPS * 1e6 * CLOCK[arch] * cores / (CYCLES_A_PHASE * PHASES[(fidelity or "HiFi4").lower()])


def work_of(
    op: Op, *, chips: int, grid_cores: int, users: Optional[int] = None, position: Optional[int] = None, tokens: int = 1
) -> Work:
    """The work of a device operation.

    chips: that share a collective. grid_cores: of a chip. In decode: `users` sequences with `position` tokens before
    the computed one, and `tokens` computed tokens a sequence. Each computed token has its own cache update, and reads
    the cache unless the operation reads it once for several (spec_multi_pos_tiles). In prefill: one user, with
    `position` tokens before the first row. users: None counts all sequences of the operation's tensors. position: None
    counts full caches in decode, and no tokens before the first row in prefill.
    """
    if "Sdpa" in op.name:
        return _decode_attention(op, grid_cores, users and users * tokens, position)
    if op.name == "SDPA":
        return _prefill_attention(op, grid_cores, position or 0)
    moved = _moved(op, users)
    collective = {"collective": _collective(op, chips)}
    if op.name.startswith(MATMULS):
        return Work(**moved | _multiplied(op, grid_cores) | collective)
    return Work(**moved | collective)


def is_collective(op: Op) -> bool:
    """Whether chips exchange data in the operation."""
    return any(word in op.name for word in EXCHANGES)


def chips_of(op: Op, devices: int) -> int:
    """The chips that share a collective, from its shapes. devices: of the mesh, for an operation that shows none."""
    if not op.inputs:
        return devices
    own = op.inputs[0].bytes
    others = [t.bytes for t in (*op.inputs[1:], *op.results)]
    if "ReduceScatter" in op.name and others:  # keeps larger tensors between the chips, too
        return max(1, round(own / min(others)))
    if ("AllGather" in op.name or "AllReduce" in op.name) and others and max(others) > own:
        return min(devices, round(max(others) / own))
    return devices


def _moved(op: Op, users: Optional[int]) -> dict:
    """Bytes between DRAM and cores. Inputs are read whole and results written whole, but for look-ups and caches."""
    if op.name == "Embeddings":  # reads the looked-up rows only
        rows = op.result.bytes + op.inputs[0].bytes
        rows += op.result.bytes if op.result.in_dram else 0
        return {"scattered": rows, "needed": rows}
    if "UpdateCache" in op.name or op.name == "UpdateKVCache" and "update" in op.call:
        # Reads, changes and writes one tile row of each user's heads.
        pairs = op.inputs[:4] if "Fused" in op.name else op.inputs[:2]
        caches, new = pairs[::2], pairs[1::2]
        count = users or new[0].shape[1 if "Paged" in op.name else 2]
        rows = sum(2 * count * _block_bytes(cache, tokens=1) for cache in caches if cache.in_dram)
        rows += sum(t.bytes for t in new if t.in_dram)
        return {"scattered": rows, "needed": rows}
    if op.name in ("PagedFillCache", "UpdateKVCache"):
        rows = op.inputs[1].bytes * (2 if op.inputs[1].in_dram else 1)
        return {"scattered": rows, "needed": rows}
    in_dram = [t for t in (*op.inputs, *op.results) if t.in_dram]
    if op.name == "Slice" and op.result and op.inputs[0].in_dram:  # reads the slice only
        in_dram[0] = replace(op.result, buffer="DRAM", layout="interleaved", shard=None)
    return {
        "streamed": sum(t.allocated for t in in_dram if t.shard),
        "scattered": sum(t.allocated for t in in_dram if not t.shard),
        "needed": sum(t.bytes for t in in_dram),
    }


def _multiplied(op: Op, grid_cores: int) -> dict:
    """[.., M, K] times [K, N]. A DRAM-sharded matmul multiplies on the readers of the banks, a multicast matmul on all
    cores.

    A convolution multiplies windows [pixels of the result, K] with its prepared weight.
    """
    x, weight = op.inputs[0], op.inputs[1]
    # The result of a plain product or a convolution has its rows, also where the operation transposes x.
    product = op.result if op.name in ("Matmul", "Conv2d") and op.result else x
    rows = prod(whole_tiles(product.shape)[:-1])
    k, n = whole_tiles(weight.shape)[-2:]
    needed = 2 * rows * k * n
    if op.dram_sharded and weight.shard:
        columns = weight.cores * weight.shard[1]
        work = {"flops": 2 * rows * k * columns, "cores": weight.cores * op.readers}
    else:
        work = {"flops": needed, "cores": (op.result and op.result.cores) or grid_cores}
    return work | {"needed_flops": needed, "fidelity": op.fidelity}


def _decode_attention(op: Op, grid_cores: int, users: Optional[int], position: Optional[int]) -> Work:
    """Reads each user's blocks of keys and values once. Scores and values are two products of 32 rows.

    q: [1, users, heads, head_dim], or a tile of heads for each of a user's tokens. users: counted by token. keys:
    [blocks, kv_heads, block, head_dim] with a page table [users, blocks of a user], or [users, kv_heads, tokens,
    head_dim].
    """
    q, keys = op.inputs[:2]
    tiles = ceil_div(q.shape[2], TILE)  # above 1: of tokens that share a read
    users = users // tiles if users else q.shape[1]
    _, kv_heads, block, head_dim = keys.shape
    if position is None:
        position = full_cache(op, block)
    cache = 2 * users * _block_bytes(keys, tokens=position + 1)
    tokens = ceil_div(position + 1, TILE) * TILE
    flops = 2 * users * kv_heads * 2 * TILE * tiles * tokens * head_dim
    return _attention(cache + _beside(op), flops, flops, grid_cores, op.fidelity)


def _prefill_attention(op: Op, grid_cores: int, start: int) -> Work:
    """A head's rows attend to all tokens before them, chunk by chunk; without causality to all tokens.

    A cached prefix is read again for every head and every chunk of rows: no published figure shows which
    reads are shared.
    """
    q, keys = op.inputs[:2]
    users, heads, rows, head_dim = q.shape
    chunk, length = op.q_chunk, keys.shape[2]
    chunks = ceil_div(rows, chunk)
    attended = chunk * chunks * (chunks + 1) // 2 + chunks * start if op.causal else chunks * length
    cache = 0
    if keys.in_dram:
        tile_columns = ceil_div(head_dim, TILE)
        cache = 2 * users * heads * attended // TILE * tile_columns * tile_bytes(keys.dtype)
    flops = 4 * users * heads * head_dim * chunk * attended
    needed = 4 * users * heads * head_dim * rows * (start + rows // 2 if op.causal else length)
    return _attention(cache + _beside(op), flops, needed, grid_cores, op.fidelity)


def _beside(op: Op) -> int:
    """Bytes of q and of the result, where they are in DRAM."""
    return sum(t.bytes for t in (op.inputs[0], *op.results) if t.in_dram)


def _attention(cache: int, flops: int, needed: int, cores: int, fidelity: Optional[str]) -> Work:
    return Work(scattered=cache, needed=cache, flops=flops, needed_flops=needed, cores=cores, fidelity=fidelity)


def _block_bytes(cache: Tensor, tokens: int) -> int:
    """Bytes of one user's tile rows with `tokens` tokens, in one of the two caches."""
    _, kv_heads, _, head_dim = cache.shape
    return ceil_div(tokens, TILE) * kv_heads * ceil_div(head_dim, TILE) * tile_bytes(cache.dtype)


def _collective(op: Op, chips: int) -> Optional[Collective]:
    """all_reduce_async counts as an all-gather: each chip sends its whole partial sum to all others."""
    if chips not in SMALLEST:  # one chip, or a number that was not measured
        return None
    topology = "ring" if op.ring and chips == 8 else "line"  # no other ring was measured
    if "ReduceScatter" in op.name:
        return Collective("reduce_scatter", chips, topology, op.inputs[0].bytes)
    if "AllGather" in op.name or "AllReduce" in op.name:
        return Collective("all_gather", chips, topology, chips * op.inputs[0].bytes)
    return None


def whole_tiles(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-2], *(ceil_div(extent, TILE) * TILE for extent in shape[-2:]))


def full_cache(op: Op, block: int) -> int:
    """The last position of a full cache."""
    tables = [t for t in op.inputs[2:] if "int" in t.dtype and len(t.shape) == 2]
    return block * (tables[0].shape[1] if tables else 1) - 1

"""The least time of a device operation on a Wormhole chip, from what it moves and multiplies. Pure functions.

Everything here is a model. Sources of the chip's numbers (documents in tt-metal's tech_reports):
- DRAM 288 GB/s: Saturating_DRAM_bandwidth, twelve banks of 24 GB/s at a 12 GT/s clock.
- matmul: matrix_engine, an 8x16 by 16x16 product a cycle at 1 GHz, one to four cycles by math fidelity.
- ethernet and collectives: CCLs/CCL_bandwidth, 12.5 GB/s a link and direction; CCLs/results, Wormhole: the formulas.
Compute is at its peak: what share of it a decode matmul gets is not published, and its measured DRAM share includes it.
"""

from dataclasses import dataclass
from math import prod
from typing import Optional

from models.demos.qwen25_7b.perf.captured import TILE, TILE_BYTES, Op, Tensor
from models.demos.qwen25_7b.plans.prefill_plan import attention_chunk

DRAM = 288e9  # bytes a second
MATMUL_CORE = 2 * 8 * 16 * 16 * 1e9  # FLOPs a second of one core at LoFi
PASSES = {"LoFi": 1, "HiFi2": 2, "HiFi3": 3, "HiFi4": 4}
LINK = 12.5e9  # bytes a second


@dataclass(frozen=True)
class Collective:
    """Kernel time = start + hop * hops + bytes / rate: bytes through the busiest link, rate with one link."""

    start: float
    hop: float
    rate: float

    def seconds(self, hops: float, sent: float, links: int) -> float:
        return self.start + self.hop * hops + sent / (self.rate * links)


# The report's fits to its traced measurements; the hops of a line are N - 1, of a ring N / 2.
GATHER_LINE, GATHER_RING = Collective(4.47e-6, 1.91e-6, 11.8e9), Collective(4.47e-6, 2.50e-6, 20.8e9)
SCATTER_LINE, SCATTER_RING = Collective(3.23e-6, 3.97e-6, 11.1e9), Collective(3.23e-6, 3.06e-6, 16.7e9)


@dataclass(frozen=True)
class Work:
    """What one launch does on one chip."""

    streamed: int = 0  # bytes read from DRAM bank by bank, padding of the banks included
    scattered: int = 0  # bytes read from or written to interleaved DRAM
    needed: int = 0  # bytes of both without padding
    flops: int = 0  # padding included
    needed_flops: int = 0
    cores: int = 0  # that multiply
    fidelity: Optional[str] = None
    collective: Optional[Collective] = None
    sent: int = 0  # bytes through the busiest link, one direction
    hops: int = 0


@dataclass(frozen=True)
class Rates:
    """What the model is calibrated by (calibration.py)."""

    streamed: float  # share of DRAM's bandwidth that a bank-by-bank stream gets
    scattered: float  # share that interleaved DRAM gets
    launch: float  # seconds that any operation costs, whatever it does


@dataclass(frozen=True)
class Bound:
    """Seconds of one launch by each bound; floor: the largest of them at the chip's full rates, nothing wasted."""

    dram: float
    compute: float
    ethernet: float
    launch: float
    floor: float

    @property
    def seconds(self) -> float:
        return max(self.dram, self.compute, self.ethernet) + self.launch

    @property
    def name(self) -> str:
        """What it waits for longest."""
        parts = {"launch": self.launch, "DRAM": self.dram, "compute": self.compute, "ethernet": self.ethernet}
        return max(parts, key=parts.get)


def bound(work: Work, rates: Rates, links: int) -> Bound:
    """links: ethernet links that a collective uses between two chips."""
    compute = floor_compute = 0.0
    if work.flops:
        peak = matmul_peak(work.fidelity, work.cores)
        compute, floor_compute = work.flops / peak, work.needed_flops / peak
    ethernet = work.collective.seconds(work.hops, work.sent, links) if work.collective else 0.0
    return Bound(
        dram=work.streamed / (DRAM * rates.streamed) + work.scattered / (DRAM * rates.scattered),
        compute=compute,
        ethernet=ethernet,
        launch=rates.launch,
        floor=max(work.needed / DRAM, floor_compute, work.sent / (LINK * links)),
    )


def matmul_peak(fidelity: Optional[str], cores: int) -> float:
    """FLOPs a second. An operation that names no fidelity is taken for the slowest."""
    return MATMUL_CORE * cores / PASSES[fidelity or "HiFi4"]


def work_of(op: Op, *, chips: int, grid_cores: int, users: int, position: int, tokens: int = 1) -> Work:
    """chips: of a replica. grid_cores: of a chip. users: each with `position` tokens behind the one computed; in a prefill
    pass one, with `position` tokens before the pass's first row. tokens: of each user in a step: each reads the cache, and
    has an update of it to itself."""
    if "Sdpa" in op.name:
        return _attention(op, grid_cores, users * tokens, position)
    if op.name == "SDPA":
        return _prefill_attention(op, grid_cores, position)
    moved = _moved(op, users)
    sent = _sent(op, chips)
    if op.name.startswith(("Matmul", "AllGatherMatmul", "MatmulReduceScatter", "MinimalMatmul")):
        return Work(**moved | _multiplied(op, grid_cores) | sent)
    return Work(**moved | sent)


def _moved(op: Op, users: int) -> dict:
    """Bytes between DRAM and cores: inputs there are read whole, results there written whole, with exceptions."""
    if op.name == "Embeddings":  # only the rows that are looked up
        rows = op.result.bytes + op.inputs[0].bytes
        return {"scattered": rows, "needed": rows}
    if "UpdateCache" in op.name:  # a token's tile row of each user's heads is read, changed and written
        caches = [t for t in op.inputs if t.in_dram and len(t.shape) == 4 and t.tiled]
        rows = sum(2 * users * _block_bytes(cache, tokens=1) for cache in caches)
        return {"scattered": rows, "needed": rows}
    if op.name == "PagedFillCache":
        rows = op.inputs[1].bytes
        return {"scattered": rows, "needed": rows}
    read = [t for t in op.inputs if t.in_dram]
    written = [t for t in op.results if t.in_dram]
    scattered = sum(t.allocated for t in (*read, *written) if not t.shard)
    streamed = sum(t.allocated for t in (*read, *written) if t.shard)
    return {"streamed": streamed, "scattered": scattered, "needed": sum(t.bytes for t in (*read, *written))}


def _multiplied(op: Op, grid_cores: int) -> dict:
    """[.., M, K] times [K, N]. A stream from DRAM is multiplied by one core a bank, whoever holds the result."""
    x, weight = op.inputs[0], op.inputs[1]
    rows = prod(_whole_tiles(x.shape)[:-1])
    k, n = _whole_tiles(weight.shape)[-2:]
    banks = op.dram_sharded and weight.shard
    columns = weight.cores * weight.shard[1] if banks else n
    cores = weight.cores if banks else (op.result.cores or grid_cores)
    return {
        "flops": 2 * rows * k * columns,
        "needed_flops": 2 * rows * k * n,
        "cores": cores,
        "fidelity": op.fidelity,
    }


def _attention(op: Op, grid_cores: int, users: int, position: int) -> Work:
    """Paged decode: a user's blocks of keys and values are read once; scores and values are two products of 32 rows."""
    keys = next(t for t in op.inputs if t.in_dram and t.tiled)  # [blocks, kv_heads, 32, head_dim]
    _, kv_heads, _, head_dim = keys.shape
    cache = 2 * users * _block_bytes(keys, tokens=position + 1)
    tokens = -(-(position + 1) // TILE) * TILE
    flops = 2 * users * kv_heads * 2 * TILE * tokens * head_dim
    return Work(scattered=cache, needed=cache, flops=flops, needed_flops=flops, cores=grid_cores, fidelity=op.fidelity)


def _prefill_attention(op: Op, grid_cores: int, start: int) -> Work:
    """Each head's rows attend to all before them and, chunk by chunk, to half of what is beside them. What a cache holds is
    read for every head and every chunk of its rows: no published figure says what of it is shared."""
    q, keys = op.inputs[:2]
    _, heads, rows, head_dim = q.shape
    chunk = attention_chunk(rows)
    ends = range(start + chunk, start + rows + 1, chunk)  # of each chunk of rows
    flops = 4 * heads * head_dim * chunk * sum(ends)
    cache = 0
    if keys.in_dram:
        tile_columns = -(-head_dim // TILE)
        cache = 2 * heads * sum(ends) // TILE * tile_columns * TILE_BYTES[keys.dtype]
    needed = 4 * heads * head_dim * rows * (start + rows // 2)
    return Work(scattered=cache, needed=cache, flops=flops, needed_flops=needed, cores=grid_cores, fidelity=op.fidelity)


def _block_bytes(cache: Tensor, tokens: int) -> int:
    """Bytes of one user's tile rows that hold `tokens` tokens, in one of the two caches."""
    _, kv_heads, _, head_dim = cache.shape
    return -(-tokens // TILE) * kv_heads * -(-head_dim // TILE) * TILE_BYTES[cache.dtype]


def _sent(op: Op, chips: int) -> dict:
    """Through the link at the end of a line of chips, which everything that its chip lacks must pass."""
    if chips == 1:
        return {}
    x = op.inputs[0]
    if "ReduceScatter" in op.name:
        return {"collective": SCATTER_LINE, "sent": x.bytes * (chips - 1) // chips, "hops": chips - 1}
    if "AllGather" in op.name or "AllReduce" in op.name:  # all_reduce_async: each chip sends its whole summand to all
        return {"collective": GATHER_LINE, "sent": x.bytes * (chips - 1), "hops": chips - 1}
    return {}


def _whole_tiles(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-2], *(-(-extent // TILE) * TILE for extent in shape[-2:]))

"""The laws of kernel times: microseconds of a device operation from its sizes, for each kind and architecture.

Each law is one function of a Case and its constants. fit.py fits the constants to published rows; constants.csv has
them, with the rows behind each and the error on rows of sources that a fit did not see. Pure functions; needs no ttnn.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Callable, Optional

from .collective_prices import START_RATE, collective_seconds

TILE = 32
TILE_BYTES = {"bf16": 2048, "bfp8": 1088, "bfp4": 576, "fp32": 4096, "uint32": 4096, "int32": 4096, "uint16": 2048}
BANKS = {"wormhole": 12, "blackhole": 8}
DRAM = {"wormhole": 288e3, "blackhole": 512e3}  # bytes a microsecond of a chip
CLOCK = {"wormhole": 1000.0, "blackhole": 1350.0}  # cycles a microsecond
GRID = {"wormhole": 64, "blackhole": 110}  # cores, where a row does not say
MULTICAST = {"wormhole": 16e3, "blackhole": 39e3}  # bytes a microsecond to a grid of cores, beyond its latency
CYCLES_A_PHASE = 16  # of a core, for the product of two tiles
# Kernel times in a trace contain the skew of the start: the same operations started by the host take so much less.
# Kernels that only move show less of it.
SKEW = {"wormhole": 1.5, "blackhole": 0.8}
SKEW_OF_MOVES = 0.4
MOVES = ("reshard", "slice", "transpose", "reshape", "pad", "tilize", "norm", "cache_update", "unary")
GAP = 0.7  # microseconds between two kernels of a trace: the median of 191 rows


@dataclass(frozen=True)
class Case:
    """What the laws know of a device operation on one chip. Sizes in tiles; 0: not known."""

    kind: str
    arch: str
    name: str = ""  # of the operation, in lower case without underscores
    m: int = 1  # rows of a batch
    k: int = 0
    n: int = 0
    batch: int = 1
    x: str = "bf16"
    w: str = "bf16"
    out: str = "bf16"
    phases: int = 0  # of the fidelity: 1 to 4
    fp32: bool = False  # dest
    width: int = 0  # in0_block_w
    passes: int = 1  # over K
    fused: bool = False  # an activation in the matmul
    cores: int = 0
    x_dram: bool = True
    w_dram: bool = True
    out_dram: bool = True
    readers: int = 1  # of a bank, of a DRAM-sharded weight
    sharded: bool = False  # x, in L1
    spread: bool = False  # the second input is smaller than the first
    rows: int = 0  # of the input, in elements: pages of a row-major tensor
    tiles: float = 0  # of the input
    result: float = 0  # tiles
    read: float = 0  # bytes from DRAM
    written: float = 0  # bytes to DRAM
    users: int = 1
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 128
    keys: int = 128
    q_chunk: int = 0
    prefill: bool = False
    chips: int = 1
    ring: bool = False
    links: int = 1
    workers: int = 0  # a link
    bytes: float = 0  # of a collective's whole tensor
    alone: bool = False  # not in a model's step
    traced: bool = True

    @property
    def on_cores(self) -> int:
        return self.cores or GRID[self.arch]

    @property
    def skew(self) -> float:
        return SKEW[self.arch] * self.traced * (SKEW_OF_MOVES if self.kind in MOVES else 1)

    @property
    def known_phases(self) -> int:
        """Where no fidelity is told, ports run bfloat4_b weights in LoFi and others in HiFi2."""
        return self.phases or (1 if self.w == "bfp4" else 2)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _rate(c: Case, share: float) -> float:
    return share * DRAM[c.arch]


def dram_sharded(c: Case, k) -> float:
    """A block of K costs a hop, and one pack of a partial sum for each tile column of a reader."""
    banks = c.cores if 0 < c.cores < BANKS[c.arch] else BANKS[c.arch]
    columns = ceil_div(c.n, banks * c.readers)
    rate = _rate(c, k.rate if c.readers == 1 else k.several) / BANKS[c.arch]
    stream = c.k * columns * c.readers * TILE_BYTES[c.w] / rate
    width = c.width or 8
    compute = width * columns * CYCLES_A_PHASE * c.known_phases / CLOCK[c.arch]
    block = k.hop + (k.sum32 if c.fp32 else k.sum) * columns + k.q * compute
    return k.start + max(stream, c.k / width * block)


def rows_matmul(c: Case, k) -> float:
    """At most four tile rows, weight interleaved: each batch reads the weight, or waits for the hops of its blocks of
    K. A core reads m tiles a column of the block and sends them to all.
    """
    cores, rate = c.on_cores, _rate(c, k.rate4 if c.w == "bfp4" else k.rate)
    weight, columns, blocks = c.k * c.n * TILE_BYTES[c.w], ceil_div(c.n, c.on_cores), c.k / (c.width or 8)
    read = max(weight / rate, weight / (cores * k.core * 1e3))
    compute = k.q * c.k * columns * c.m * CYCLES_A_PHASE * c.known_phases / CLOCK[c.arch]
    width = c.width or 8
    sent = c.m * width * TILE_BYTES[c.x] * (1 / MULTICAST[c.arch] + c.x_dram / (k.core * 1e3))
    hops = blocks * (k.hop + k.spread * cores / 64 + sent)
    moved = c.batch * c.m * (c.k * TILE_BYTES[c.x] * c.x_dram + c.n * TILE_BYTES[c.out] * c.out_dram)
    return k.start + c.batch * (max(read, compute, hops) + blocks * k.sum * columns * c.m) + moved / rate


def ring_matmul(c: Case, k) -> float:
    """Weights in the L1 of a ring of cores, or prefetched there (Galaxy). An LM head is larger: it comes from DRAM."""
    weight = c.k * c.n * TILE_BYTES[c.w]
    product = c.k * ceil_div(c.n, RING) * k.tile / 1e3
    return k.start + (product if weight < RING_L1 else max(product, weight / _rate(c, k.rate)))


RING, RING_L1 = 24, 24e6  # cores, and bytes of their L1 for weights


@lru_cache(maxsize=None)
def _fullest(m: int, n: int, cores: int) -> int:
    """Result tiles of the fullest core, on the best rectangle of cores."""
    return min(ceil_div(m, y) * ceil_div(n, cores // y) for y in range(1, min(cores, 13) + 1))


def wide_matmul(c: Case, k) -> float:
    """Many tile rows on all cores. Each pass over K reads x again."""
    rows = c.m * c.batch
    core = _fullest(rows, c.n, c.on_cores) if c.on_cores > 8 else ceil_div(rows * c.n, c.on_cores)
    product = max(k.q * CYCLES_A_PHASE * c.known_phases, (TILE_BYTES[c.x] + TILE_BYTES[c.w]) / k.unpack)
    compute = core * (c.k * product + 100 * k.out * (1 + c.fused * k.fused)) / CLOCK[c.arch]
    x = rows * c.k * TILE_BYTES[c.x] * c.x_dram
    weight = c.k * c.n * TILE_BYTES[c.w] * c.w_dram * c.batch
    moved = (x + weight + rows * c.n * TILE_BYTES[c.out] * c.out_dram) / _rate(c, k.rate)
    overlap = 1 + k.p
    both = (compute**overlap + moved**overlap) ** (1 / overlap)
    return k.start + both + (max(1, c.passes) - 1) * x / _rate(c, k.again)


def small(c: Case, k) -> float:
    """Bytes at a rate of the chip or of few cores, and a time for each tile of a core."""
    moved = c.read + c.written
    share = c.result / c.on_cores
    tiles = share if moved else ceil(share - 1e-9)
    silu = k.silu * ceil(share - 1e-9) if "silu" in c.name else 0
    pages = c.rows / c.on_cores * k.page if c.kind in PAGED or "with" in c.name else 0
    tiles *= k.spread if c.spread else 1
    return k.start + c.skew + moved / min(_rate(c, k.rate), c.on_cores * k.core * 1e3) + tiles * k.tile + silu + pages


# May take rows of a row-major tensor one at a time, as tilize with padding and untilize without it do.
PAGED = ("reshape", "transpose", "pad", "slice")


def norm(c: Case, k) -> float:
    cores = min(c.cores or max(1, c.m), GRID[c.arch])
    if c.sharded:
        return k.sharded + c.skew + c.tiles / cores * k.tile_sharded
    return k.start + c.skew + c.tiles / cores * k.tile + (c.read + c.written) / _rate(c, k.rate)


def _heads_moved(c: Case, k) -> float:
    return k.start + (c.read + c.written) / min(_rate(c, k.rate), max(1, c.cores or 32) * k.core * 1e3)


def create_heads(c: Case, k) -> float:
    if c.prefill:
        return _heads_moved(c, k)
    heads, users = c.tiles * TILE / c.head_dim or c.heads + 2 * c.kv_heads, min(TILE, c.users) / TILE
    if c.sharded:
        return k.start + heads * k.sharded + users * k.users_sharded
    return k.start + heads * k.head + users * k.users


def concat_heads(c: Case, k) -> float:
    if c.prefill:
        return _heads_moved(c, k)
    return k.start + min(TILE, c.users) / TILE * (k.users + max(0, c.tiles - 128) / 128 * k.wide)


def rotary(c: Case, k) -> float:
    if c.prefill or c.x_dram and not c.name.endswith(("hf", "llama", "fusedqk")):  # those take shards
        tiles = c.tiles or (c.heads or 8) * c.head_dim / TILE
        cores = min(c.cores or tiles, GRID[c.arch])
        return k.interleaved + c.skew + tiles * (k.tile / cores + 2 * TILE_BYTES[c.x] / _rate(c, k.rate))
    short = k.short if c.name.endswith(("hf", "fusedqk")) else 1
    return short * (k.start + k.users * min(TILE, c.users) / TILE) + c.skew


def cache_update(c: Case, k) -> float:
    """Reads, changes and writes one tile row of each user's heads, a core a user; fused: keys beside values."""
    heads, cores = c.kv_heads or 8, min(TILE, c.users) * (2 if "fused" in c.name else 1)
    moved = 2 * cores * heads * c.head_dim / TILE * TILE_BYTES[c.x]
    return k.start + c.skew + max(heads * k.head, moved / min(_rate(c, k.rate), cores * k.core * 1e3))


def cache_fill(c: Case, k) -> float:
    return k.start + 2 * c.tiles * TILE_BYTES[c.x] / _rate(c, k.rate)


def sdpa_decode(c: Case, k) -> float:
    """Reads each user's keys and values once, a head of k by a few cores. A core takes heads of k of a user in rounds;
    with q in DRAM each round reads and writes the rows of its heads for itself."""
    heads = c.kv_heads or 8
    head = 2 * ceil_div(c.keys + 1, TILE) * c.head_dim / TILE * TILE_BYTES[c.w]
    one = head / (k.head * 1e3) if c.arch == "wormhole" else 0.0
    read = max(c.users * heads * head / _rate(c, k.rate), one)
    rounds = ceil_div(heads, max(1, (c.cores or 64) // c.users)) * ceil_div(c.heads or 1, TILE)
    return k.start + c.skew + read + heads * k.each + (rounds - 1) * k.round * c.x_dram


def sdpa_prefill(c: Case, k) -> float:
    """A core takes chunks of rows of a head in rounds, long and short ones, at least the longest. Each reads its keys.

    tiles: rows of a user; keys: those before and of the prompt; causal where there are as many keys as rows.
    """
    rows, heads = max(1, int(c.tiles)), c.heads or 8
    chunk = min(max(1, (c.q_chunk or 128) // TILE), rows)
    chunks, units = ceil_div(rows, chunk), c.batch * heads * ceil_div(rows, chunk)
    before = max(0, c.keys // TILE - rows)
    attended = chunk * chunks * (chunks + 1) / 2 + chunks * before  # key tiles of all chunks of a head
    mean = chunk * attended / chunks
    pairs = max(mean * ceil(units / c.on_cores), chunk * (chunk * chunks + before))
    columns = c.head_dim / TILE
    cycles = 2 * columns * (CYCLES_A_PHASE * (c.phases or 2) + k.product) + k.pair
    read = 2 * c.batch * heads * columns * (attended * TILE_BYTES[c.w] + rows * TILE_BYTES[c.x])
    return k.start + max(pairs * cycles / CLOCK[c.arch], read / _rate(c, k.rate))


def embedding(c: Case, k) -> float:
    return k.start + c.result * min(c.rows or TILE, TILE) / TILE / c.on_cores * k.tile


def topk(c: Case, k) -> float:
    """Cores sort a share of a power of two of columns, and one more merges them. A single core takes another width
    (rows: 31,040 columns).
    """
    columns = c.n * TILE
    if c.cores <= 1 and columns & (columns - 1):
        return k.start + columns / 1e3 * k.single
    return k.start + columns / 1e3 * k.many * 64 / (c.cores // 2 * 2 or 64)


def argmax(c: Case, k) -> float:
    return k.start + min(TILE, c.users) * c.n * TILE / 1e3 * k.row


def constant(c: Case, k) -> float:
    return k.start


# Not fitted: what a call in a step of Wormhole chips adds. The rows of a fit are of prompts, where it does not show.
STEP = {"wormhole": 4.628}


def collective(c: Case, k) -> Optional[float]:
    """The time of a call alone, and what a model's step adds. None: a number of chips that was not measured.

    A tensor of small tiles waits for its tiles, not for its bytes. More workers a link help on a line; on a ring the
    rows show no gain. reduce_scatter_async: before tt-metal PR 41522, whose ring is the table's.
    """
    op, size = c.name, c.bytes
    if c.chips not in (2, 4, 8):
        return None
    old = op == "reduce_scatter_async" and c.ring and c.chips == 8 and c.arch == "wormhole"
    if op == "reduce_scatter_async":
        op = "reduce_scatter"
    if op == "all_reduce_async":  # each chip sends its whole partial sum to all others
        op, size = "all_gather", c.chips * size * (k.ring if c.ring and c.arch == "blackhole" else 1)
    if c.arch == "blackhole":
        start, rate = START_RATE[op, c.chips]  # two links
        us = start + size / (rate * 1e3) * 2 / c.links * (k.four if c.ring and c.chips == 4 else 1)
    elif op == "all_to_all":
        return None
    else:
        us = 1e6 * collective_seconds(op, c.chips, "ring" if c.ring and c.chips == 8 else "line", size, c.links)
    us = max(us * (k.workers if c.workers >= 4 and not c.ring else 1), size / TILE_BYTES[c.x] * k.tile / c.links)
    return us + old * k.old + (0 if c.alone else STEP.get(c.arch, k.step))


SMALL = dict(start=1.0, rate=0.6, core=10.0, tile=0.05, silu=1.5, page=0.003, spread=5.0)
HEADS = dict(start=1.5, rate=0.3, core=2.0)

# Each kind's law, and where a fit starts: FINDINGS of one machine, or what a reader would guess. rate: a share of
# DRAM's.
LAWS: dict[str, tuple[Callable, dict[str, float]]] = {
    "dram_sharded": (dram_sharded, dict(start=6.0, rate=0.9, several=0.9, hop=0.3, sum=0.035, sum32=0.06, q=0.1)),
    "rows_matmul": (rows_matmul, dict(start=5.0, rate=0.7, rate4=0.62, core=11.0, q=1.0, hop=0.8, spread=0.6,
        sum=0.05)),
    "ring_matmul": (ring_matmul, dict(start=4.0, tile=32.0, rate=0.7)),
    "wide_matmul": (
        wide_matmul, dict(start=5.0, q=1.1, unpack=110.0, out=1.0, fused=1.0, rate=0.55, again=0.3, p=0.3),
    ),
    "norm": (norm, dict(start=5.0, tile=0.7, rate=0.5, sharded=7.0, tile_sharded=0.2)),
    "create_heads": (create_heads, HEADS | dict(head=0.28, users=15.0, sharded=0.09, users_sharded=3.0)),
    "concat_heads": (concat_heads, HEADS | dict(users=5.0, wide=2.0)),
    "rotary": (rotary, dict(start=3.0, interleaved=6.0, tile=1.0, rate=0.2, users=2.0, short=0.5)),
    "cache_update": (cache_update, dict(start=2.0, head=1.0, rate=0.8, core=6.0)),
    "cache_fill": (cache_fill, dict(start=2.0, rate=0.8)),  # moves as a binary does
    "sdpa_decode": (sdpa_decode, dict(start=8.0, rate=0.66, head=53.0, round=10.0, each=0.5)),
    "sdpa_prefill": (sdpa_prefill, dict(start=5.0, product=49.0, pair=413.0, rate=0.65)),
    "embedding": (embedding, dict(start=1.5, tile=0.3)),
    "binary": (small, SMALL),
    "unary": (small, SMALL),
    "reshard": (small, SMALL),
    "slice": (small, SMALL),
    "transpose": (small, SMALL),
    "tilize": (small, SMALL | dict(page=0.3)),
    "reshape": (small, SMALL | dict(start=2.0, tile=0.5)),
    "pad": (small, SMALL | dict(start=15.0)),
    "topk": (topk, dict(start=10.0, many=5.0, single=400.0)),
    "argmax": (argmax, dict(start=5.0, row=0.5)),
    "sampling": (constant, dict(start=60.0)),
    "collective": (collective, dict(step=4.0, workers=0.8, ring=0.6, four=0.7, tile=0.06, old=20.0)),
}  # fmt: skip
# Not fitted: no row has a long cache. 64k tokens more of Llama-3.1-8B, one user, take 23.8 ms on an N150 and 10.7 ms on
# a T3K with one head of k a chip (tt_transformers/PERF.md): 190 GB/s, and 53 GB/s a head.
# Several readers a bank: one source has them, and a fit to it alone exceeds what a chip's DRAM gives.
HELD = {"sdpa_decode": ("rate", "head"), "dram_sharded": ("several",)}

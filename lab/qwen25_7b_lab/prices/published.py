"""Published decode steps of other ports, priced operation by operation: the test of the laws' sum. No constant is
fitted to them.

lab/prices.md has the table, with dates. Pure functions.
"""

from dataclasses import dataclass, replace
from math import gcd
from typing import Iterator

from .constants import price
from .laws import GAP, TILE, Case, ceil_div

SIDE = 8  # of the grid
FAVORED = 32  # cores of attention's input
LONGEST = 8  # tiles of a block of K
PADDED = ("Qwen2.5-7B", "Qwen2.5-32B")  # the MLP is padded to whole tiles of 32 cores of each chip
LM_HEAD = 32768 // TILE  # columns of an LM head's matmul, at most
# Mean position of a run: its prompt and half of the 200 generated tokens.
ONE_USER_RUN, SHORT_RUN = 512 + 100, 128 + 100

# What published steps that the host samples take beyond their operations: the medians of nine steps of one user and of
# three of 32 users with 128,256 logits each (tt_transformers/PERF.md). No other constant is from whole steps.
HOST_ONE_USER, HOST_MORE, HOST_LOGITS = 2.0e-3, 5.3e-3, 31 * 128256


@dataclass(frozen=True)
class Dims:
    """A published model. `mlp_in`: the format of gate and up; `attention`: of attention's weights."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int = 128256
    attention: str = "bfp8"
    mlp_in: str = "bfp8"
    mlp_out: str = "bfp8"


LLAMA_8B = Dims("Llama-3.1-8B", 4096, 32, 32, 8, 128, 14336, mlp_in="bfp4")
LLAMA_8B_BFP4 = replace(LLAMA_8B, attention="bfp4", mlp_out="bfp4")
LLAMA_3B = Dims("Llama-3.2-3B", 3072, 28, 24, 8, 128, 8192, mlp_in="bfp4")
LLAMA_1B = Dims("Llama-3.2-1B", 2048, 16, 32, 8, 64, 8192, mlp_in="bfp4")
QWEN_7B = Dims("Qwen2.5-7B", 3584, 28, 28, 4, 128, 18944, 152064, attention="bf16")
QWEN_7B_XLA = replace(QWEN_7B, attention="bfp8")
QWEN_32B = Dims("Qwen2.5-32B", 5120, 64, 40, 8, 128, 27648, 152064, attention="bf16")
MISTRAL_7B = Dims("Mistral-7B", 4096, 32, 32, 8, 128, 14336, 32768, mlp_in="bfp4")
QWEN3_8B = Dims("Qwen3-8B", 4096, 36, 32, 8, 128, 12288, 151936, mlp_in="bfp4")


@dataclass(frozen=True)
class Step:
    """A published step: tokens a second and user. on_chips: sampled there, so that no host is in it."""

    dims: Dims
    machine: str
    chips: int
    users: int
    speed: float
    source: str
    on_chips: bool = False

    @property
    def seconds(self) -> float:
        return 1 / self.speed

    @property
    def modeled(self) -> float:
        """Seconds of its operations, and of the host where it samples."""
        position = ONE_USER_RUN if self.users == 1 else SHORT_RUN
        cases = [*step_cases(self.dims, self.chips, self.users, position)]
        if self.on_chips:
            cases += sampling_cases(self.dims, self.chips)
        host = 0.0 if self.on_chips else HOST_ONE_USER + HOST_MORE * (self.users - 1) * self.dims.vocab / HOST_LOGITS
        return host + 1e-6 * sum(count * (price(case).us + GAP) for case, count in cases)

    @property
    def ratio(self) -> float:
        return self.modeled / self.seconds


TT = "tt_transformers/PERF.md"
STEPS = (
    Step(LLAMA_8B, "N150", 1, 1, 28.3, TT), Step(LLAMA_8B, "N300", 2, 1, 44.2, TT),
    Step(LLAMA_8B, "T3K", 8, 1, 64.3, TT),
    Step(LLAMA_3B, "N150", 1, 1, 54.0, TT), Step(LLAMA_3B, "N300", 2, 1, 68.0, TT),
    Step(LLAMA_3B, "T3K", 8, 1, 68.5, TT),
    Step(LLAMA_1B, "N150", 1, 1, 87.8, TT), Step(LLAMA_1B, "N300", 2, 1, 105.9, TT),
    Step(LLAMA_1B, "T3K", 8, 1, 119.8, TT),
    Step(LLAMA_8B, "N150", 1, 32, 22.3, TT), Step(LLAMA_8B, "N300", 2, 32, 33.5, TT),
    Step(LLAMA_8B, "T3K", 8, 32, 45.6, TT),
    Step(QWEN_7B, "N300", 2, 1, 24.6, TT),
    Step(QWEN_7B, "N300", 2, 32, 25.5, "June 2026, tt-metal PR 43814"),
    Step(QWEN_32B, "T3K", 8, 1, 19.7, TT),
    Step(LLAMA_8B, "N150", 1, 1, 23.5, "tt-metal, models/autoports"),
    Step(LLAMA_8B_BFP4, "T3K", 8, 1, 70.6, "tt-metal, models/autoports", True),
    Step(LLAMA_3B, "N150", 1, 1, 49.8, "June 2026, tt-metal PR 47349"),
    Step(LLAMA_3B, "N300", 2, 1, 49.9, "June 2026, tt-metal PR 47349"),
    Step(LLAMA_3B, "T3K", 8, 1, 72.6, "June 2026, tt-metal PR 47349", True),
    Step(LLAMA_3B, "N150", 1, 32, 43.5, "June 2026, tt-metal PR 47349"),
    Step(LLAMA_3B, "N300", 2, 32, 44.1, "June 2026, tt-metal PR 47349"),
    Step(LLAMA_3B, "T3K", 8, 32, 70.6, "June 2026, tt-metal PR 47349", True),
    Step(LLAMA_8B, "T3K", 8, 1, 68.1, "January 2026, tt-inference-server PR 1966"),
    Step(QWEN3_8B, "N300", 2, 1, 34.1, "January 2026, tt-inference-server PR 1571"),
    Step(QWEN3_8B, "N300", 2, 32, 32.0, "January 2026, tt-inference-server PR 1571"),
    Step(MISTRAL_7B, "N150", 1, 32, 28.4, "June 2026, tt-metal PR 44697"),
    Step(MISTRAL_7B, "N300", 2, 32, 42.8, "June 2026, tt-metal PR 44697"),
    Step(MISTRAL_7B, "N150", 1, 1, 25.3, "2026, tt-metal"),
    Step(QWEN_7B_XLA, "N150", 1, 32, 18.1, "2026, tt-mlir PR 9252"),
    Step(LLAMA_1B, "T3K", 8, 1, 153.8, "July 2026, tt-metal PR 49284", True),
    Step(LLAMA_3B, "T3K", 8, 1, 77.2, "8 July 2026, tt-metal issue 49345", True),
    Step(MISTRAL_7B, "T3K", 8, 1, 52.6, "8 July 2026, tt-metal issue 49346", True),
)  # fmt: skip


def span() -> tuple[float, float]:
    """The least and the largest published time of a step, as a share of its modeled time."""
    shares = [1 / step.ratio for step in STEPS]
    return min(shares), max(shares)


def step_cases(d: Dims, chips: int, users: int, position: int) -> Iterator[tuple[Case, int]]:
    """The operations of a step by tt_transformers' rules before tt-metal PR 55444, each with its count."""
    for case, count in layer_cases(d, chips, users, position):
        yield case, count * d.layers
    hidden = d.hidden / TILE
    yield norm(hidden), 1
    yield Case("embedding", "wormhole", result=hidden, cores=FAVORED), 1
    columns = ceil_div(d.vocab, TILE * chips)
    while columns > 0:
        inner = d.hidden // TILE
        yield matmul(inner, min(columns, LM_HEAD), _width(inner, shared(inner, inner)), "bfp8"), 1
        columns -= LM_HEAD


def sampling_cases(d: Dims, chips: int) -> Iterator[tuple[Case, int]]:
    """topk of a chip's columns, padded to a power of two, and a token of the candidates of all chips."""
    columns = ceil_div(d.vocab, TILE * chips)
    yield Case("topk", "wormhole", n=1 << (columns - 1).bit_length(), cores=SIDE * SIDE), 1
    candidates = chips * TILE * TILE * 2
    yield Case("collective", "wormhole", "all_gather", bytes=candidates, chips=chips, ring=chips == 8), 2
    yield Case("sampling", "wormhole"), 1


def layer_cases(d: Dims, chips: int, users: int, position: int) -> Iterator[tuple[Case, int]]:
    hidden, heads, kv_heads = d.hidden // TILE, d.heads // chips, max(1, d.kv_heads // chips)
    whole = TILE * FAVORED * chips
    mlp = (ceil_div(d.mlp, whole) * whole if d.name in PADDED else d.mlp) // chips // TILE
    favored = min(_grids(hidden), key=lambda cores: abs(cores - FAVORED))
    both, one = shared(hidden, mlp), d.head_dim // TILE
    columns = (heads + 2 * kv_heads) * one
    attention = Case(
        "", "wormhole", x_dram=False, users=users, heads=heads, kv_heads=kv_heads, head_dim=d.head_dim, keys=position
    )
    yield norm(hidden), 2
    yield matmul(hidden, columns, _width(hidden, favored), d.attention), 1
    yield replace(attention, kind="create_heads", tiles=columns), 1
    yield replace(attention, kind="rotary", name="rotaryembeddingllama"), 2
    yield replace(attention, kind="cache_update", x="bfp8"), 2
    yield replace(attention, kind="sdpa_decode", w="bfp8"), 1
    yield replace(attention, kind="concat_heads", tiles=heads * one), 1
    yield matmul(heads * one, hidden, heads * one // heads, d.attention), 1
    yield matmul(hidden, mlp, _width(hidden, both), d.mlp_in), 2
    yield Case("binary", "wormhole", "mulsilu", result=mlp, cores=both), 1
    yield matmul(mlp, hidden, _width(mlp, both), d.mlp_out), 1
    yield Case("binary", "wormhole", "add", result=hidden, cores=FAVORED), 2
    yield Case("reshard", "wormhole", "reshard", result=hidden, cores=FAVORED), 6
    if chips > 1:
        moved = Case("collective", "wormhole", bytes=TILE * d.hidden * 2, chips=chips, ring=chips == 8)
        for op in ("all_gather", "reduce_scatter_async"):
            yield replace(moved, name=op), 2


def norm(tiles: float) -> Case:
    return Case("norm", "wormhole", tiles=tiles, cores=FAVORED, sharded=True)


def matmul(inner: int, columns: int, width: int, dtype: str) -> Case:
    return Case("dram_sharded", "wormhole", k=inner, n=columns, width=width, w=dtype)


def shared(hidden: int, mlp: int) -> int:
    return max(_grids(gcd(hidden, mlp)))


def _grids(tiles: int) -> list[int]:
    """Numbers of cores that divide the tiles and fill a rectangle of 8x8."""
    rectangles = {x * y for x in range(1, SIDE + 1) for y in range(1, SIDE + 1)}
    return sorted(cores for cores in rectangles if tiles % cores == 0)


def _width(inner: int, cores: int) -> int:
    """A block divides a core's tiles."""
    return max(w for w in range(1, LONGEST + 1) if inner // cores % w == 0)

"""The rates of the model, fitted to published speeds of Llama 3 on the same cards. Pure functions.

The speeds are tokens a second and user from tt-metal's models/tt_transformers/PERF.md: N150, N300 and T3K (all eight
chips one replica), traced, 200 tokens generated. That port launches 24 operations a layer of Qwen2.5-7B on an N300 and
19 around the layers (counted on a mock N300); Llama has no QKV bias to add, so 23, four of them collectives that a
single chip does not launch.

Two fits, each by least squares of relative errors:
- A step of one user, "accuracy" table (bfloat8_b weights): weights at MATMUL_SHARE of DRAM's bandwidth + collectives by
  the formulas in bounds.py + launches * `launch` + `once`. Fitted: launch and once, what a step costs that is no
  layer's (the host, sampling). The share is not fitted: the fit would pass what such a matmul was measured to reach.
- What a step of 32 users takes longer than one of one user ("performance" against "Short-Context, Batch-32" tables,
  both of mixed bfloat4_b and bfloat8_b weights, which the difference leaves out): cache at `scattered` of DRAM's
  bandwidth + `crowd`. Fitted: scattered and crowd. crowd is the same for every model and every number of chips, so it
  is taken for the host's: reading 32 rows of logits and choosing from them.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Sequence

import numpy as np

from models.demos.qwen25_7b.perf.bounds import (
    DRAM,
    GATHER_LINE,
    GATHER_RING,
    SCATTER_LINE,
    SCATTER_RING,
    Rates,
)
from models.demos.qwen25_7b.plans.grids import TILE, TILE_BYTES
from models.demos.qwen25_7b.plans.memory_budget import streamed_bytes

SOURCE = "tt-metal models/tt_transformers/PERF.md"
# DRAM-sharded decode matmuls of Llama-3-70B: 239 to 260 GB/s measured (tech_reports/Saturating_DRAM_bandwidth)
MATMUL_SHARE = 249.5e9 / DRAM
LAUNCHES_A_LAYER, COLLECTIVES_A_LAYER, LAUNCHES_AROUND = 23, 4, 19
MACHINES = {1: "N150", 2: "N300", 8: "T3K"}
LONG_PROMPT, ONE_USER_RUN, SHORT_RUN = 65536 + 100, 512 + 100, 128 + 100  # mean position: prompt, half of 200 tokens


@dataclass(frozen=True)
class Dims:
    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int = 128256
    attention_format: str = "bfloat8_b"


LLAMA_8B = Dims("Llama-3.1-8B", 4096, 32, 32, 8, 128, 14336)
LLAMA_3B = Dims("Llama-3.2-3B", 3072, 28, 24, 8, 128, 8192)
LLAMA_1B = Dims("Llama-3.2-1B", 2048, 16, 32, 8, 64, 8192)
QWEN_7B = Dims("Qwen2.5-7B", 3584, 28, 28, 4, 128, 18944, 152064, "bfloat16")
QWEN_32B = Dims("Qwen2.5-32B", 5120, 64, 40, 8, 128, 27648, 152064, "bfloat16")

# (dims, chips): tokens a second and user
ACCURACY = {
    (LLAMA_8B, 1): 25.2, (LLAMA_8B, 2): 38.8, (LLAMA_8B, 8): 60.8,
    (LLAMA_3B, 1): 47.6, (LLAMA_3B, 2): 63.5, (LLAMA_3B, 8): 67.9,
    (LLAMA_1B, 1): 84.7, (LLAMA_1B, 2): 102.8, (LLAMA_1B, 8): 120.5,
}  # fmt: skip
PERFORMANCE = {
    (LLAMA_8B, 1): 28.3, (LLAMA_8B, 2): 44.2, (LLAMA_8B, 8): 64.3,
    (LLAMA_3B, 1): 54.0, (LLAMA_3B, 2): 68.0, (LLAMA_3B, 8): 68.5,
    (LLAMA_1B, 1): 87.8, (LLAMA_1B, 2): 105.9, (LLAMA_1B, 8): 119.8,
}  # fmt: skip
BATCH_32 = {
    (LLAMA_8B, 1): 22.3, (LLAMA_8B, 2): 33.5, (LLAMA_8B, 8): 45.6,
    (LLAMA_3B, 1): 36.5, (LLAMA_3B, 2): 45.8, (LLAMA_3B, 8): 47.8,
    (LLAMA_1B, 1): 54.7, (LLAMA_1B, 2): 64.2, (LLAMA_1B, 8): 69.9,
}  # fmt: skip
# In no fit, one user: the "Long-context (64K Tokens)" table; "accuracy" table, bfloat16 attention.
LONG = {(LLAMA_8B, 1): 16.9, (LLAMA_8B, 2): 26.1, (LLAMA_8B, 8): 38.1}
HELD_OUT = {(QWEN_7B, 2): 24.6, (QWEN_32B, 8): 19.7}


@dataclass(frozen=True)
class Point:
    """A published figure beside the model's."""

    label: str
    unit: str
    published: float
    modelled: float

    @property
    def residual(self) -> float:
        return self.modelled / self.published - 1


@dataclass(frozen=True)
class Calibration:
    rates: Rates
    once: float  # seconds a step of one user beyond its operations
    crowd: float  # seconds more of a step of 32 users, beyond its cache
    steps: tuple[Point, ...]  # fitted: tokens a second of one user
    crowds: tuple[Point, ...]  # fitted: milliseconds that 32 users take longer
    held_out: tuple[Point, ...]  # not fitted: tokens a second of one user; milliseconds that 64k tokens take longer
    spread: dict[str, tuple[float, float]]  # each parameter over the fits that leave one point out

    def host(self, users: int) -> float:
        """Seconds a step that the published runs spend beyond their operations: two points, a line between them."""
        return self.once + self.crowd * (users - 1) / 31


def weight_bytes(d: Dims, chips: int) -> int:
    """Bytes that a chip streams for one step, MLP and LM head in bfloat8_b. Split as that port splits: evenly."""
    heads, kv_heads = d.heads // chips, max(1, d.kv_heads // chips)
    layer = (
        streamed_bytes(d.hidden, (heads + 2 * kv_heads) * d.head_dim, d.attention_format)
        + streamed_bytes(heads * d.head_dim, d.hidden, d.attention_format)
        + 2 * streamed_bytes(d.hidden, d.mlp // chips, "bfloat8_b")
        + streamed_bytes(d.mlp // chips, d.hidden, "bfloat8_b")
    )
    return d.layers * layer + streamed_bytes(d.hidden, d.vocab // chips, "bfloat8_b")


def cache_bytes(d: Dims, chips: int, users: int, position: int) -> float:
    """Bytes of a bfloat8_b cache that a chip reads in a step."""
    tokens = users * position * d.layers
    return tokens * 2 * max(1, d.kv_heads / chips) * d.head_dim * TILE_BYTES["bfloat8_b"] / TILE**2


def collective_seconds(d: Dims, chips: int) -> float:
    """Two all-gathers and two reduce-scatters a layer of [32, hidden] bfloat16; eight chips are a ring."""
    if chips == 1:
        return 0.0
    ring = chips == 8
    gather, scatter = (GATHER_RING, SCATTER_RING) if ring else (GATHER_LINE, SCATTER_LINE)
    sent, hops = TILE * d.hidden * 2 * (chips - 1) / chips, chips / 2 if ring else chips - 1
    return d.layers * 2 * (gather.seconds(hops, sent, 1) + scatter.seconds(hops, sent, 1))


def launches(d: Dims, chips: int) -> int:
    return d.layers * (LAUNCHES_A_LAYER - (COLLECTIVES_A_LAYER if chips == 1 else 0)) + LAUNCHES_AROUND


def moved_seconds(d: Dims, chips: int, scattered: float) -> float:
    """Of a step of one user: weights, cache, collectives; nothing that is fitted to it."""
    cache = cache_bytes(d, chips, 1, ONE_USER_RUN) / (DRAM * scattered)
    return weight_bytes(d, chips) / (DRAM * MATMUL_SHARE) + cache + collective_seconds(d, chips)


def least_squares(rows: Sequence[Sequence[float]], targets: Sequence[float], scale: Sequence[float]) -> np.ndarray:
    """Coefficients of rows for targets, both divided by scale."""
    scale = np.array(scale)
    return np.linalg.lstsq(np.array(rows) / scale[:, None], np.array(targets) / scale, rcond=None)[0]


def longer_seconds(key: tuple[Dims, int]) -> float:
    """Published: a step of 32 users less one of one user."""
    return 1 / BATCH_32[key] - 1 / PERFORMANCE[key]


def more_cache(key: tuple[Dims, int]) -> float:
    """Bytes that 32 users read more than one, at the positions of those runs."""
    return cache_bytes(*key, 32, SHORT_RUN) - cache_bytes(*key, 1, ONE_USER_RUN)


def fit_crowd(keys: Sequence) -> tuple[float, float]:
    """(scattered, crowd), of what 32 users take longer than one."""
    extra = [more_cache(k) for k in keys]
    longer = [longer_seconds(k) for k in keys]
    crowd, slope = least_squares([(1, b / DRAM) for b in extra], longer, longer)
    return 1 / slope, crowd


def fit_step(keys: Sequence, scattered: float) -> tuple[float, float]:
    """(launch, once), of a step of one user."""
    rest = [1 / ACCURACY[k] - moved_seconds(*k, scattered) for k in keys]
    return tuple(least_squares([(launches(*k), 1) for k in keys], rest, [1 / ACCURACY[k] for k in keys]))


@lru_cache(maxsize=None)
def calibrate() -> Calibration:
    keys = list(ACCURACY)
    scattered, crowd = fit_crowd(keys)
    launch, once = fit_step(keys, scattered)

    def speed(key) -> float:
        return 1 / (moved_seconds(*key, scattered) + launches(*key) * launch + once)

    def longer_context(key) -> float:
        return (cache_bytes(*key, 1, LONG_PROMPT) - cache_bytes(*key, 1, ONE_USER_RUN)) / (DRAM * scattered)

    without = [[k for k in keys if k != left] for left in keys]
    crowds = [fit_crowd(some) for some in without]
    steps = [fit_step(some, scattered) for some in without]
    return Calibration(
        rates=Rates(MATMUL_SHARE, scattered, launch),
        once=once,
        crowd=crowd,
        steps=tuple(_point(k, "t/s/u", v, speed(k)) for k, v in ACCURACY.items()),
        crowds=tuple(
            _point(k, "ms", 1e3 * longer_seconds(k), 1e3 * (more_cache(k) / (DRAM * scattered) + crowd)) for k in keys
        ),
        held_out=(
            *(_point(k, "t/s/u", v, speed(k)) for k, v in HELD_OUT.items()),
            *(_point(k, "ms for 64k", 1e3 * (1 / LONG[k] - 1 / PERFORMANCE[k]), 1e3 * longer_context(k)) for k in LONG),
        ),
        spread={
            "launch": _range([s[0] for s in steps]),
            "once": _range([s[1] for s in steps]),
            "scattered": _range([c[0] for c in crowds]),
            "crowd": _range([c[1] for c in crowds]),
        },
    )


def _point(key: tuple[Dims, int], unit: str, published: float, modelled: float) -> Point:
    d, chips = key
    return Point(f"{d.name} on {MACHINES[chips]}", unit, published, modelled)


def _range(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)

"""The model's parameters, fitted to published measurements on Wormhole cards, and the fit's errors.

docs/perf.md has the fits and the sources. Pure functions.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Sequence

import numpy as np

from golden_mesh.perf.collective_prices import collective_seconds
from golden_mesh.perf.device_ops import TILE, Tensor, ceil_div, tile_bytes
from golden_mesh.perf.op_costs import BANKS, DRAM, Rates

# The middle of 239 to 260 GB/s, measured for DRAM-sharded decode matmuls (tech_reports/Saturating_DRAM_bandwidth).
MATMUL_SHARE = 249.5e9 / DRAM
# Counted on a mock N300 for the port behind the published speeds; a single chip launches no collectives.
LAUNCHES_A_LAYER, COLLECTIVES_A_LAYER, LAUNCHES_AROUND = 23, 4, 19
MACHINES = {1: "N150", 2: "N300", 8: "T3K"}
# Mean position of a run: its prompt and half of the 200 generated tokens.
LONG_PROMPT, ONE_USER_RUN, SHORT_RUN = 65536 + 100, 512 + 100, 128 + 100


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
    attention: str = "bfloat8_b"
    mlp_in: str = "bfloat8_b"


LLAMA_8B = Dims("Llama-3.1-8B", 4096, 32, 32, 8, 128, 14336)
LLAMA_3B = Dims("Llama-3.2-3B", 3072, 28, 24, 8, 128, 8192)
LLAMA_1B = Dims("Llama-3.2-1B", 2048, 16, 32, 8, 64, 8192)
QWEN_7B = Dims("Qwen2.5-7B", 3584, 28, 28, 4, 128, 18944, 152064, attention="bfloat16")
QWEN_32B = Dims("Qwen2.5-32B", 5120, 64, 40, 8, 128, 27648, 152064, attention="bfloat16")
LLAMA_3B_4BIT = Dims("Llama-3.2-3B (TTTv2)", 3072, 28, 24, 8, 128, 8192, mlp_in="bfloat4_b")
MISTRAL_7B = Dims("Mistral-7B (TTTv2)", 4096, 32, 32, 8, 128, 14336, 32768, mlp_in="bfloat4_b")
LLAMA_8B_4BIT = replace(LLAMA_8B, name="Llama-3.1-8B (vLLM)", mlp_in="bfloat4_b")
LLAMA_1B_4BIT = replace(LLAMA_1B, name="Llama-3.2-1B (TTTv2)", mlp_in="bfloat4_b")
QWEN3_8B = Dims("Qwen3-8B (vLLM)", 4096, 36, 32, 8, 128, 12288, 151936, mlp_in="bfloat4_b")

SPEED = "t/s/u"  # tokens a second and user, the unit of a point that is a whole step
Key = tuple[Dims, int]  # a model and the chips that share it

# Tokens a second and user: tt-metal models/tt_transformers/PERF.md, tables Accuracy, Performance, Batch-32, Long-context.
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
LONG = {(LLAMA_8B, 1): 16.9, (LLAMA_8B, 2): 26.1, (LLAMA_8B, 8): 38.1}
# In no fit; docs/perf.md has dates and sources.
HELD_OUT = {
    (QWEN_7B, 2): 24.6, (QWEN_32B, 8): 19.7,
    (LLAMA_3B_4BIT, 1): 49.8, (LLAMA_3B_4BIT, 2): 49.9, (LLAMA_3B_4BIT, 8): 72.6,
    (LLAMA_8B_4BIT, 8): 68.07, (QWEN3_8B, 2): 34.06,
}  # fmt: skip
HELD_OUT_32_USERS = {(MISTRAL_7B, 1): 28.4, (MISTRAL_7B, 2): 42.8, (QWEN3_8B, 2): 31.97}
GALAXY_DP_4 = 49.2  # LLAMA_8B_4BIT, 32 users on each row of 8 chips
# In no fit, of steps without the host: the chips sample, and the host waits for no step before it launches the next.
HELD_OUT_ON_CHIPS = {
    (LLAMA_1B_4BIT, 8): 1e3 / 6.50, (LLAMA_3B_4BIT, 8): 1e3 / 12.95, (MISTRAL_7B, 8): 1e3 / 19.01,
}  # fmt: skip

# Share of the matrix engines' peak on an N150 (M, K, N: percent): tt-metal tech_reports/GEMM_FLOPS/GEMM_FLOPS.md, manually tuned
# configurations, device-based; input and result sharded in L1, weight in DRAM. By format of both operands and fidelity.
GEMM = {
    ("bfloat16", "HiFi4"): {
        (512, 1024, 1024): 64.02, (512, 1024, 2048): 66.08, (1024, 1024, 1024): 79.19, (1024, 1024, 2048): 82.43,
        (1024, 2048, 2048): 85.07, (2048, 2048, 2048): 89.65, (2048, 3072, 3072): 92.04, (3072, 3072, 3072): 92.41,
    },
    ("bfloat16", "HiFi2"): {
        (512, 1024, 1024): 32.77, (512, 1024, 2048): 34.45, (1024, 1024, 1024): 49.69, (1024, 1024, 2048): 55.15,
        (1024, 2048, 2048): 57.70, (2048, 2048, 2048): 64.88, (2048, 3072, 3072): 65.50, (3072, 3072, 3072): 64.56,
    },
    ("bfloat8_b", "HiFi2"): {
        (512, 1024, 1024): 47.41, (512, 1024, 2048): 54.26, (1024, 1024, 1024): 69.68, (1024, 1024, 2048): 74.89,
        (1024, 2048, 2048): 80.51, (2048, 2048, 2048): 84.56, (2048, 3072, 3072): 86.95, (3072, 3072, 3072): 88.56,
    },
    ("bfloat8_b", "LoFi"): {
        (512, 1024, 1024): 24.59, (512, 1024, 2048): 29.11, (1024, 1024, 1024): 41.49, (1024, 1024, 2048): 47.81,
        (1024, 2048, 2048): 53.93, (2048, 2048, 2048): 59.82, (2048, 3072, 3072): 61.20, (3072, 3072, 3072): 61.57,
    },
    ("bfloat4_b", "LoFi"): {
        (512, 1024, 1024): 30.31, (512, 1024, 2048): 36.66, (1024, 1024, 1024): 53.00, (1024, 1024, 2048): 61.90,
        (1024, 2048, 2048): 71.80, (2048, 2048, 2048): 79.49, (2048, 3072, 3072): 82.24, (3072, 3072, 3072): 84.63,
    },
}  # fmt: skip
GEMM_CORES, CYCLES = 64, {"LoFi": 16, "HiFi2": 32, "HiFi4": 64}


@dataclass(frozen=True)
class Point:
    """A published figure beside the model's."""

    label: str
    unit: str
    published: float
    modeled: float

    @property
    def residual(self) -> float:
        return self.modeled / self.published - 1


@dataclass(frozen=True)
class Calibration:
    rates: Rates
    once: float  # seconds of a step of one user beyond its operations
    crowd: float  # seconds more for a step of 32 users, beyond its cache
    # Seconds of a multicast matmul beyond its tiles and its weight. A launch covers it.
    gemm_start: float
    steps: tuple[Point, ...]  # fitted: tokens a second of one user
    crowds: tuple[Point, ...]  # fitted: milliseconds that 32 users take longer
    gemms: tuple[Point, ...]  # fitted: microseconds of a matmul
    held_out: tuple[Point, ...]  # in no fit
    spread: dict[str, tuple[float, float]]  # least and largest value with one point left out

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest published time of a step that no fit has seen, as a share of its modeled time."""
        shares = [1 + point.residual for point in self.held_out if point.unit == SPEED]
        return min(shares), max(shares)

    def host(self, users: int) -> float:
        """Seconds of a step beyond its operations in the published runs: a line through one and 32 users."""
        return self.once + self.crowd * (users - 1) / 31


def streamed_bytes(rows: int, columns: int, dtype: str) -> int:
    """Bytes of a weight [rows, columns] over the DRAM banks, which hold as many tile columns as the fullest."""
    shard = rows, ceil_div(columns, TILE * BANKS) * TILE
    weight = Tensor((rows, columns), dtype, True, "DRAM", "width-sharded", shard, BANKS)
    return weight.allocated


def weight_bytes(d: Dims, chips: int) -> int:
    """Bytes that a chip streams in a step, split evenly; down and the LM head in bfloat8_b."""
    heads, kv_heads = d.heads // chips, max(1, d.kv_heads // chips)
    layer = (
        streamed_bytes(d.hidden, (heads + 2 * kv_heads) * d.head_dim, d.attention)
        + streamed_bytes(heads * d.head_dim, d.hidden, d.attention)
        + 2 * streamed_bytes(d.hidden, d.mlp // chips, d.mlp_in)
        + streamed_bytes(d.mlp // chips, d.hidden, "bfloat8_b")
    )
    return d.layers * layer + streamed_bytes(d.hidden, d.vocab // chips, "bfloat8_b")


def cache_bytes(d: Dims, chips: int, users: int, position: int) -> float:
    """Bytes of a bfloat8_b cache that a chip reads in a step."""
    tokens = users * position * d.layers
    return tokens * 2 * max(1, d.kv_heads / chips) * d.head_dim * tile_bytes("bfloat8_b") / TILE**2


def layer_collective_seconds(d: Dims, chips: int) -> float:
    """Two all-gathers and two reduce-scatters a layer of [32, hidden] bfloat16; eight chips are a ring."""
    if chips == 1:
        return 0.0
    how = (chips, "ring" if chips == 8 else "line", TILE * d.hidden * 2)
    return 2 * sum(collective_seconds(op, *how) for op in ("all_gather", "reduce_scatter"))


def launches(d: Dims, chips: int) -> int:
    a_layer = LAUNCHES_A_LAYER - (COLLECTIVES_A_LAYER if chips == 1 else 0)
    return d.layers * a_layer + LAUNCHES_AROUND


def moved_seconds(d: Dims, chips: int, scattered: float, users: int = 1, position: int = ONE_USER_RUN) -> float:
    """Of a step: weights, cache and collectives."""
    cache = cache_bytes(d, chips, users, position) / (DRAM * scattered)
    streamed = weight_bytes(d, chips) / (DRAM * MATMUL_SHARE)
    return streamed + cache + d.layers * layer_collective_seconds(d, chips)


def least_squares(rows: Sequence, targets: Sequence[float], scale: Sequence[float]) -> np.ndarray:
    """Coefficients of the rows for the targets, by squares of errors relative to the scale."""
    scale = np.array(scale)
    left, right = np.array(rows) / scale[:, None], np.array(targets) / scale
    return np.linalg.lstsq(left, right, rcond=None)[0]


def longer_seconds(key: Key) -> float:
    """Published: a step of 32 users less one of one user."""
    return 1 / BATCH_32[key] - 1 / PERFORMANCE[key]


def more_cache(key: Key) -> float:
    """Bytes that 32 users read more than one user, at the positions of those runs."""
    return cache_bytes(*key, 32, SHORT_RUN) - cache_bytes(*key, 1, ONE_USER_RUN)


def fit_crowd(keys: Sequence[Key]) -> tuple[float, float]:
    """(scattered, crowd), from the time that 32 users take longer than one."""
    longer = [longer_seconds(k) for k in keys]
    crowd, slope = least_squares([(1, more_cache(k) / DRAM) for k in keys], longer, longer)
    return 1 / slope, crowd


def fit_step(keys: Sequence[Key], scattered: float) -> tuple[float, float]:
    """(launch, once), from a step of one user."""
    rest = [1 / ACCURACY[k] - moved_seconds(*k, scattered) for k in keys]
    rows = [(launches(*k), 1) for k in keys]
    return tuple(least_squares(rows, rest, [1 / ACCURACY[k] for k in keys]))


GemmKey = tuple[tuple[str, str], tuple[int, int, int]]


def gemm_keys() -> list[GemmKey]:
    return [(kind, shape) for kind, shapes in GEMM.items() for shape in shapes]


def gemm_work_seconds(key: GemmKey, unpack: float) -> float:
    """Seconds to read the whole weight and then multiply. unpack: bytes a cycle of a core."""
    (dtype, fidelity), (m, k, n) = key
    cycles = max(CYCLES[fidelity], 2 * tile_bytes(dtype) / unpack)
    products = m * k * n / TILE**3 / GEMM_CORES
    weight = k * n / TILE**2 * tile_bytes(dtype)
    return 1e-9 * products * cycles + weight / (DRAM * MATMUL_SHARE)


def gemm_seconds(key: GemmKey) -> float:
    """Published."""
    (_, fidelity), (m, k, n) = key
    peak = 1e-9 * m * k * n / TILE**3 / GEMM_CORES * CYCLES[fidelity]
    return peak / (GEMM[key[0]][key[1]] / 100)


@lru_cache(maxsize=None)
def fit_gemm() -> tuple[float, float]:
    """(unpack, start): bytes a cycle, searched in steps of 1, and the seconds of a matmul beyond gemm_work_seconds."""
    keys = gemm_keys()
    times = np.array([gemm_seconds(key) for key in keys])
    fits = []
    for unpack in range(60, 200):
        parts = np.array([gemm_work_seconds(key, unpack) for key in keys])
        (start,) = least_squares([(1,)] * len(keys), times - parts, times)
        missed = (parts + start) / times - 1
        fits.append((missed @ missed, float(unpack), start))
    return min(fits)[1:]


@lru_cache(maxsize=None)
def calibrate() -> Calibration:
    keys = list(ACCURACY)
    scattered, crowd = fit_crowd(keys)
    launch, once = fit_step(keys, scattered)
    unpack, start = fit_gemm()
    rates = Rates(MATMUL_SHARE, scattered, launch, unpack)
    without = [[k for k in keys if k != left] for left in keys]
    crowds = [fit_crowd(some) for some in without]
    steps = [fit_step(some, scattered) for some in without]
    return Calibration(
        rates=rates,
        once=once,
        crowd=crowd,
        gemm_start=start,
        steps=tuple(_speed(k, v, rates, once) for k, v in ACCURACY.items()),
        crowds=tuple(_longer(k, rates, crowd) for k in keys),
        gemms=tuple(_gemm(key, rates, start) for key in gemm_keys()),
        held_out=(
            *(_speed(k, v, rates, once) for k, v in HELD_OUT.items()),
            *(_speed(k, v, rates, once + crowd, 32) for k, v in HELD_OUT_32_USERS.items()),
            replace(
                _speed((LLAMA_8B_4BIT, 8), GALAXY_DP_4, rates, once + crowd, 32),
                label=f"{LLAMA_8B_4BIT.name}, 32 users on GALAXY",
            ),
            *(_speed(k, v, rates, 0.0) for k, v in HELD_OUT_ON_CHIPS.items()),
            *(_long(k, rates) for k in LONG),
        ),
        spread={
            "launch": _range([s[0] for s in steps]),
            "once": _range([s[1] for s in steps]),
            "scattered": _range([c[0] for c in crowds]),
            "crowd": _range([c[1] for c in crowds]),
        },
    )


def step_seconds(d: Dims, chips: int, rates: Rates, users: int = 1, position: int = ONE_USER_RUN) -> float:
    """The operations of a published port's step."""
    return moved_seconds(d, chips, rates.scattered, users, position) + launches(d, chips) * rates.launch


def _speed(key: Key, published: float, rates: Rates, host: float, users: int = 1) -> Point:
    seconds = step_seconds(*key, rates, users, ONE_USER_RUN if users == 1 else SHORT_RUN) + host
    crowd = f"{key[0].name}, {users} users" if users > 1 else key[0].name
    return _point((replace(key[0], name=crowd), key[1]), SPEED, published, 1 / seconds)


def _longer(key: Key, rates: Rates, crowd: float) -> Point:
    modeled = more_cache(key) / (DRAM * rates.scattered) + crowd
    return _point(key, "ms", 1e3 * longer_seconds(key), 1e3 * modeled)


def _long(key: Key, rates: Rates) -> Point:
    """What a cache of 64k tokens costs one user."""
    more = cache_bytes(*key, 1, LONG_PROMPT) - cache_bytes(*key, 1, ONE_USER_RUN)
    published = 1 / LONG[key] - 1 / PERFORMANCE[key]
    return _point(key, "ms for 64k", 1e3 * published, 1e3 * more / (DRAM * rates.scattered))


def _gemm(key: GemmKey, rates: Rates, start: float) -> Point:
    (dtype, fidelity), shape = key
    modeled = gemm_work_seconds(key, rates.unpack) + start
    label = f"{' x '.join(map(str, shape))}, {dtype} {fidelity}"
    return Point(label, "us", 1e6 * gemm_seconds(key), 1e6 * modeled)


def _point(key: Key, unit: str, published: float, modeled: float) -> Point:
    d, chips = key
    return Point(f"{d.name} on {MACHINES[chips]}", unit, published, modeled)


def _range(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)

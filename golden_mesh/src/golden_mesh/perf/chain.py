"""The chain of multicasts of DRAM-sharded matmuls in published steps, and the most that a multicast (hop) takes.

Such a matmul multicasts its input in K / in0_block_w blocks, one after the other (tt-metal issue 55443). A hop that takes
longer than a block's weights is waited for. No price contains the chain: docs/perf.md says why. Pure functions.
"""

from math import gcd
from typing import NamedTuple

from golden_mesh.perf.calibration import (
    HELD_OUT,
    HELD_OUT_32_USERS,
    HELD_OUT_ON_CHIPS,
    LLAMA_8B_4BIT,
    MATMUL_SHARE,
    SPEED,
    Dims,
    Key,
    Point,
    calibrate,
    streamed_bytes,
)
from golden_mesh.perf.device_ops import TILE, ceil_div
from golden_mesh.perf.op_costs import DRAM

# (hops, microseconds) of DRAM-sharded matmuls on a Wormhole: comments of tt-metal
# tests/ttnn/unit_tests/operations/matmul/test_matmul_deepseek.py (qkv_a, wq_b, wo, wo with blocks of half the width).
MATMULS = ((7, 13.2), (16, 23.0), (8, 93.0), (16, 83.0))
# Seconds of a hop, at most: a matmul takes no less time than its hops. How much less a hop takes, no figure says.
HOP_AT_MOST = 1e-6 * min(us / hops for hops, us in MATMULS)

SIDE = 8  # of the grid
FAVORED = 32  # cores of attention's input
LONGEST = 8  # tiles of a block
PADDED = ("Qwen2.5-7B", "Qwen2.5-32B")  # the MLP is padded to whole tiles of 32 cores of each chip


class Matmul(NamedTuple):
    """A decode matmul of a published port on one chip."""

    inner: int  # tiles
    columns: int  # tiles
    hops: int
    dtype: str
    times: int = 1  # in a layer

    @property
    def stream_seconds(self) -> float:
        weight = streamed_bytes(self.inner * TILE, self.columns * TILE, self.dtype)
        return weight / (DRAM * MATMUL_SHARE)

    def waited(self, hop: float) -> float:
        """Seconds that the chain takes longer than the weights. hop: seconds of one."""
        return max(0.0, self.hops * hop - self.stream_seconds)


def matmuls(d: Dims, chips: int) -> tuple[Matmul, ...]:
    """QKV, O, gate and up, down of a layer, by tt_transformers' rules before tt-metal PR 55444."""
    hidden, head = d.hidden // TILE, d.head_dim // TILE
    heads, kv_heads = d.heads // chips, max(1, d.kv_heads // chips)
    whole = TILE * FAVORED * chips
    mlp = ceil_div(d.mlp, whole) * whole if d.name in PADDED else d.mlp
    mlp //= chips * TILE
    favored = min(_grids(hidden), key=lambda cores: abs(cores - FAVORED))
    shared = max(_grids(gcd(hidden, mlp)))
    qkv = (heads + 2 * kv_heads) * head
    return (
        Matmul(hidden, qkv, _hops(hidden, favored), d.attention),
        Matmul(heads * head, hidden, heads, d.attention),  # a head a core
        Matmul(hidden, mlp, _hops(hidden, shared), d.mlp_in, times=2),
        Matmul(mlp, hidden, _hops(mlp, shared), "bfloat8_b"),
    )


def layer_hops(d: Dims, chips: int) -> int:
    """As the issue counts them: gate and up once."""
    return sum(matmul.hops for matmul in matmuls(d, chips))


def chain_seconds(d: Dims, chips: int, hop: float = HOP_AT_MOST) -> float:
    """Of a step's layers, beyond their streamed weights. The LM head is not counted."""
    return d.layers * sum(matmul.times * matmul.waited(hop) for matmul in matmuls(d, chips))


def held_out_steps() -> list[tuple[Key, Point]]:
    """The published steps that no fit has seen, in the calibration's order."""
    keys = (*HELD_OUT, *HELD_OUT_32_USERS, (LLAMA_8B_4BIT, 8), *HELD_OUT_ON_CHIPS)
    steps = [point for point in calibrate().held_out if point.unit == SPEED]
    return list(zip(keys, steps, strict=True))


def _grids(tiles: int) -> list[int]:
    """Numbers of cores that divide the tiles and fill a rectangle of 8x8."""
    rectangles = {x * y for x in range(1, SIDE + 1) for y in range(1, SIDE + 1)}
    return sorted(cores for cores in rectangles if tiles % cores == 0)


def _hops(inner: int, cores: int) -> int:
    """A block divides a core's tiles."""
    tiles = inner // cores
    return inner // max(w for w in range(1, LONGEST + 1) if tiles % w == 0)

"""What lies in a core's L1: bytes that tensors and an op's circular buffers take, moment by moment.

The library gives a tensor the same addresses on every core, so a shard counts on all of them, whether they hold one or not.
"""

from dataclasses import dataclass
from math import prod

from models.demos.qwen25_7b.plans.grids import TILE, TILE_BYTES, ceil_div

L1 = 1_393_312  # bytes of a core that the runtime leaves for buffers
BANKS = 64  # cores over which interleaved tensors are dealt out, on a grid of 8x8
SEMAPHORES = 40_000  # for what collectives keep: L1_SMALL (models/common/mesh.py), and in L1 where a mesh has none


@dataclass(frozen=True)
class Moment:
    """While an op runs: the tensors that live, by name, and the op's circular buffers; bytes of a core."""

    op: str
    tensors: tuple[tuple[str, int], ...]
    buffers: int

    @property
    def bytes(self) -> int:
        return self.buffers + sum(size for _, size in self.tensors)


def interleaved(rows: int, columns: int, format: str = "bfloat16", banks: int = BANKS) -> int:
    """Bytes of a core that a tiled tensor [rows, columns] takes, dealt out over `banks` cores."""
    return ceil_div(tiles(rows, columns), banks) * TILE_BYTES[format]


def sharded(height: int, width: int, format: str = "bfloat16") -> int:
    """Bytes of a shard of height x width elements, in whole tiles."""
    return tiles(height, width) * TILE_BYTES[format]


def tiles(*extents: int) -> int:
    return prod(ceil_div(extent, TILE) for extent in extents)

"""What a load cannot be faster than: reading its files once, and ttnn's own packing of its tensors."""

import os
import time
from collections import Counter
from pathlib import Path

from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig, Recipe

BLOCK = 1 << 20  # bytes that are read at a time, as cat does it


def evict(files: list[Path]) -> None:
    """Have the system forget what it holds of the files, so that they come from the disk again."""
    for file in files:
        handle = os.open(file, os.O_RDONLY)
        try:
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def reading(files: list[Path]) -> float:
    """Seconds to read them all, one after the other."""
    block = bytearray(BLOCK)
    begin = time.perf_counter()
    for file in files:
        with open(file, "rb", buffering=0) as stream:
            while stream.readinto(block):
                pass
    return time.perf_counter() - begin


def packing(config: QwenConfig, plan: ParallelPlan, recipe: Recipe) -> float:
    """Seconds that ttnn.from_torch takes for all pieces, one after the other, each from a tensor in memory as it wants it.

    Each kind of piece is timed once and counted as often as there are such.
    """
    import torch
    import ttnn

    from models.demos.qwen25_7b.loading.inventory import inventory

    kinds = Counter((piece.part.shape, piece.format, piece.tiled) for piece in inventory(config, plan, recipe))
    total = 0.0
    for (shape, format, tiled), count in kinds.items():
        tensor = torch.empty(1, 1, *shape).normal_().bfloat16()
        layout = ttnn.TILE_LAYOUT if tiled else ttnn.ROW_MAJOR_LAYOUT
        begin = time.perf_counter()
        ttnn.from_torch(tensor, dtype=getattr(ttnn, format), layout=layout)
        total += count * (time.perf_counter() - begin)
    return total

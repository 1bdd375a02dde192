"""The buffers that live on the chips, each by the line of the program that made it.

Errors of full memory list them. golden_mesh.live_buffers() returns them at any time. ttnn's own allocator says what
lives.
"""

import contextlib
import functools
import re
from math import ceil
from typing import Callable, NamedTuple

import ttnn

from golden_mesh.mesh import meshes
from golden_mesh.mesh.memory import Slot
from golden_mesh.program import aligned, lines, place

_FULL = re.compile(r"Out of Memory.* (DRAM|L1)|(clash) with L1 buffers|(beyond) max L1 size")
SHOWN = 12  # buffers of an error
_made: dict[tuple, "Made"] = {}  # mesh id, ttnn.BufferType, address -> what was made there last


class Buffer(NamedTuple):
    line: str  # of the program, and its caller; "?" for a buffer that no operation made, such as a semaphore
    operation: str
    shape: tuple[int, ...]  # on a chip
    dtype: str
    memory: str  # L1, DRAM, L1_SMALL or TRACE
    bytes: int  # on each core; of DRAM in each bank
    cores: int  # of DRAM banks; 0: unknown


class Made(NamedTuple):
    """What an operation made. It holds no tensor, which would keep the buffer."""

    mesh: ttnn.MeshDevice
    lines: list[tuple[str, int]]  # of the program (program.py)
    operation: str
    slot: Slot
    config: ttnn.MemoryConfig
    pages: int


class Chip(NamedTuple):
    """What the library asks of a device before it chooses a program."""

    columns: int  # of cores that compute
    rows: int
    free_l1: int  # bytes of a core

    @property
    def cores(self) -> int:
        return self.columns * self.rows


def chip_of(mesh: ttnn.MeshDevice) -> Chip:
    grid, l1 = mesh.compute_with_storage_grid_size(), ttnn.get_memory_view(mesh, ttnn.BufferType.L1)
    return Chip(grid.x, grid.y, l1.largest_contiguous_bytes_free_per_bank)


def live_buffers() -> list[Buffer]:
    """The buffers on all open meshes, those with the most bytes on a core first."""
    found = []
    for mesh in filter(meshes.is_open, {id: made.mesh for (id, *_), made in _made.items()}.values()):
        for buffer in ttnn._ttnn.reports.get_buffers(mesh):
            kind, size = buffer.buffer_type, buffer.max_size_per_bank
            made = _made.get((mesh.id(), kind, buffer.address))
            if made is None or made.slot.size != size:
                found.append(Buffer("?", "", (), "", kind.name, size, 0))
                continue
            line = " < ".join(place(*each) for each in made.lines) or "?"
            shape, dtype, held = made.slot.shape, made.slot.dtype.name, min(banks(made.config, mesh), made.pages)
            found.append(Buffer(line, made.operation, shape, dtype, kind.name, size, held))
    return sorted(found, key=lambda each: -each.bytes)


def forget() -> None:
    """Drop what was made on meshes that were closed."""
    for key in [key for key, made in _made.items() if not meshes.is_open(made.mesh)]:
        del _made[key]


def explaining(real: Callable) -> Callable:
    """The library's call. An error of full memory also lists the live buffers."""

    @functools.wraps(real)
    def call(operation, *args, **kwargs):
        try:
            return real(operation, *args, **kwargs)
        except RuntimeError as error:
            _explain(error, lambda: real(operation, *args, **kwargs))
            raise

    return call


def note(operation, tensor: ttnn.Tensor, slot: Slot) -> None:
    """Keep the program's line as that which made the tensor's buffer."""
    mesh = tensor.device()
    name, config, pages = operation.python_fully_qualified_name, tensor.memory_config(), tensor.buffer_num_pages()
    _made[mesh.id(), slot.buffer_type, slot.address] = Made(mesh, lines(2), name, slot, config, pages)


def bank_bytes(tensor: ttnn.Tensor, config: ttnn.MemoryConfig, mesh: ttnn.MeshDevice) -> int:
    """Return the bytes of the tensor's buffer in each bank. Pages are spread evenly over banks or shards."""
    return ceil(tensor.buffer_num_pages() / banks(config, mesh)) * tensor.buffer_aligned_page_size()


def banks(config: ttnn.MemoryConfig, mesh: ttnn.MeshDevice) -> int:
    """Cores with a shard; of an interleaved buffer all banks."""
    if config.shard_spec is not None:
        return config.shard_spec.grid.num_cores()
    is_dram = config.buffer_type == ttnn.BufferType.DRAM
    grid = mesh.dram_grid_size() if is_dram else mesh.compute_with_storage_grid_size()
    return grid.x * grid.y


def _explain(error: RuntimeError, again: Callable) -> None:
    """Add the live buffers to an error of full memory, and the circular buffers of its operation."""
    text = str(error)
    full = _FULL.search(text)
    if not full or "live buffers" in text:
        return
    memory = full[1] or "L1"
    found = [each for each in live_buffers() if each.memory == memory]
    kind = "bank" if memory == "DRAM" else "core"
    table = [(f"bytes a {kind}", f"{kind}s", "line", "operation", "tensor")]
    for b in found[:SHOWN]:
        tensor = f"{list(b.shape)} {b.dtype}"
        table.append((f"{b.bytes:,}", f"{b.cores or '?'}", b.line, b.operation, tensor))
    total = sum(each.bytes for each in found)
    added = [text, f"{len(found)} live buffers in {memory}, {total:,} bytes a {kind}, the largest:"]
    added += aligned(table)
    if full[2] or full[3]:
        added += _circular_buffers(again)
    error.args = ("\n".join(added),)


def _circular_buffers(again: Callable) -> list[str]:
    """Those of a call that fails, from ttnn's graph capture. Some operations report none there."""
    ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NORMAL)
    with contextlib.suppress(Exception):  # in a capture ttnn 0.77.0 cannot print every argument
        again()
    nodes = ttnn.graph.end_graph_capture()
    sizes: dict[str, list[int]] = {}
    found = [n["params"] for n in nodes if n["node_type"] == "circular_buffer_allocate"]
    for buffer in found:
        is_first = buffer["device_id"] == found[0]["device_id"]  # the chips are alike
        if is_first and buffer["globally_allocated"] == "0":
            sizes.setdefault(buffer["core_range_set"], []).append(int(buffer["size"]))
    return [
        f"circular buffers of the operation on cores {cores}: {sum(each):,} bytes = {' + '.join(map(str, each))}"
        for cores, each in sizes.items()
    ]

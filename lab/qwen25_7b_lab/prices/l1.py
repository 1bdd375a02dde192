"""L1 of a core while each device operation runs, read from the nodes of ttnn's graph capture."""

import re
from dataclasses import dataclass
from typing import Iterator, Sequence

from golden_mesh.graph.device_ops import SUFFIX


@dataclass(frozen=True)
class L1Use:
    """L1 of a core while a device operation runs, in bytes since the capture began."""

    op: str
    tensors: int  # the largest sum, the operation's own temporaries included
    lowest: int  # the tensors' lowest address
    buffers: int  # circular buffers; 0 where ttnn reports none


def l1_uses(nodes: Sequence[dict], scope: str) -> Iterator[L1Use]:
    """Of each device operation in a scope that ttnn.graph.track_function_start began. nodes: the result of
    end_graph_capture.
    """
    scopes, inside, alive, above = [], 0, {}, 1 << 32
    for node in nodes:
        kind, params = node["node_type"], node["params"]
        if kind == "function_start":
            scopes.append([params["name"], sum(alive.values()), min(alive, default=above), []])
            inside += params["name"] == scope
        elif kind == "function_end":
            name, *use, buffers = scopes.pop()
            inside -= name == scope
            if inside and SUFFIX.match(name):
                yield L1Use(re.sub(r"(Device)?Operation$", "", name), *use, extent(buffers))
        elif kind == "circular_buffer_allocate" and params["globally_allocated"] == "0":
            for each in scopes:
                each[-1].append((int(params["address"]), int(params["size"])))
        elif kind == "buffer_allocate" and params["type"] == "L1":
            address = int(params["address"])
            alive[address] = int(params["max_size_per_bank"])
            for each in scopes:
                each[1:3] = max(each[1], sum(alive.values())), min(each[2], address)
        elif kind == "buffer_deallocate" and params["type"] == "L1":
            alive.pop(int(params["address"]), None)


def extent(buffers: Sequence[tuple[int, int]]) -> int:
    """Bytes from the first to the last circular buffer (address, bytes).

    Every chip reports its own buffers, at the same addresses. Buffers of different cores may overlap.
    """
    if not buffers:
        return 0
    return max(at + size for at, size in buffers) - min(at for at, _ in buffers)

"""Records the device operations of a program, for `perf run`.

Each call of the library is a graph capture of its own, so a program's own captures stay whole.
"""

import functools
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Callable, Iterator, NamedTuple

import ttnn
from golden_mesh.mesh import dispatch
from golden_mesh.mesh.arguments import on_device, tensors_in

from golden_mesh import sections

from .device_ops import Op, operations, program_scope

WHOLE = "the whole program"


class Launch(NamedTuple):
    """A device operation on its mesh."""

    op: Op
    devices: int  # chips of the mesh
    cores: int  # of a chip
    arch: str  # as the laws name it


def launch_of(op: Op, mesh: ttnn.MeshDevice) -> Launch:
    grid = mesh.compute_with_storage_grid_size()
    return Launch(op, mesh.get_num_devices(), grid.x * grid.y, mesh.arch().name.lower().removesuffix("_b0"))


@dataclass
class Recorder:
    """The launches of a program: all of them, those of each trace, and those of each golden_mesh.captured block."""

    whole: Counter[Launch] = field(default_factory=Counter)
    in_order: list[Launch] = field(default_factory=list)
    traces: dict[str, Counter[Launch]] = field(default_factory=dict)
    blocks: dict[str, Counter[Launch]] = field(default_factory=dict)

    def add(self, launch: Launch) -> None:
        self.whole[launch] += 1
        self.in_order.append(launch)
        if dispatch.traces.active is not None:
            name = f"trace {dispatch.traces.active}"
            self.traces.setdefault(name, Counter())[launch] += 1
        for name in dict.fromkeys(sections.entered):
            self.blocks.setdefault(name, Counter())[launch] += 1

    def captured(self) -> Iterator[tuple[str, int, Counter[Launch]]]:
        """Name, number of runs and launches of each captured part: blocks, else traces, else the whole program."""
        for name in sections.times:
            yield name, sections.times[name], self.blocks.get(name, Counter())
        if not sections.times:
            for name, launches in (self.traces or {WHOLE: self.whole}).items():
                yield name, 1, launches


_inside = threading.local()


def recording(real: Callable, recorder: Recorder) -> Callable:
    """Wrap the library's call. Nested calls belong to the outer one, except those of transparent operations."""

    @functools.wraps(real)
    def call(operation, *args, **kwargs):
        if getattr(_inside, "call", False) or operation.python_fully_qualified_name in dispatch.TRANSPARENT:
            return real(operation, *args, **kwargs)
        meshes = [t.device() for t in tensors_in((args, kwargs)) if on_device(t)]
        _inside.call = True
        ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NORMAL)
        try:
            with program_scope(kwargs.get("program_config")):
                result = real(operation, *args, **kwargs)
        finally:
            nodes = ttnn.graph.end_graph_capture()
            _inside.call = False
        meshes += [t.device() for t in tensors_in(result) if on_device(t)]
        # all_reduce_async does not report its topology to the graph.
        ring = any(value is ttnn.Topology.Ring for value in (*args, *kwargs.values()))
        for op in operations(nodes):
            recorder.add(launch_of(replace(op, ring=op.ring or ring), meshes[0]))
        return result

    return call

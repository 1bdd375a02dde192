"""golden-mesh perf: records the device operations of a program, and prints their prices at exit.

Each call of the library is a graph capture of its own, so a program's own captures stay whole.
"""

import atexit
import functools
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Callable, Iterator, NamedTuple, Optional

import ttnn

from golden_mesh import dispatch
from golden_mesh.arguments import on_device, tensors_in
from golden_mesh.perf import sections
from golden_mesh.perf.calibration import calibrate
from golden_mesh.perf.device_ops import Op, operations
from golden_mesh.perf.op_costs import chips_of
from golden_mesh.perf.prices import Row
from golden_mesh.perf.report import Section, report

WHOLE = "the whole program"


class Launch(NamedTuple):
    """A device operation on its mesh."""

    op: Op
    devices: int  # chips of the mesh
    cores: int  # of a chip


@dataclass
class Recorder:
    """The launches of a program: all of them, those of each trace, and those of each golden_mesh.captured block."""

    whole: Counter[Launch] = field(default_factory=Counter)
    traces: dict[str, Counter[Launch]] = field(default_factory=dict)
    blocks: dict[str, Counter[Launch]] = field(default_factory=dict)

    def add(self, launch: Launch) -> None:
        self.whole[launch] += 1
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
        if (
            getattr(_inside, "call", False)
            or operation.python_fully_qualified_name in dispatch.TRANSPARENT
        ):
            return real(operation, *args, **kwargs)
        meshes = [t.device() for t in tensors_in((args, kwargs)) if on_device(t)]
        _inside.call = True
        ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NORMAL)
        try:
            result = real(operation, *args, **kwargs)
        finally:
            nodes = ttnn.graph.end_graph_capture()
            _inside.call = False
        meshes += [t.device() for t in tensors_in(result) if on_device(t)]
        # all_reduce_async does not report its topology to the graph.
        ring = any(value is ttnn.Topology.Ring for value in (*args, *kwargs.values()))
        for op in operations(nodes):
            op = replace(op, ring=op.ring or ring)
            grid = meshes[0].compute_with_storage_grid_size()
            recorder.add(Launch(op, meshes[0].get_num_devices(), grid.x * grid.y))
        return result

    return call


def section(
    name: str, runs: int, launches: Counter[Launch], links: int, position: Optional[int]
) -> Section:
    """The priced operations of a captured part."""
    rates = calibrate().rates
    rows = [
        Row.make(
            op, count, rates,
            links=links, chips=chips_of(op, devices), grid_cores=cores, position=position,
        )
        for (op, devices, cores), count in launches.items()
    ]  # fmt: skip
    return Section(name, runs, max((launch.devices for launch in launches), default=1), tuple(rows))


def start(links: int, position: Optional[int]) -> None:
    """Record this process's operations from now on. Call it after the golden mesh was activated.

    links: ethernet links between two chips. position: tokens in the caches of decode attention; None: full caches.
    """
    recorder = Recorder()
    dispatch.REAL_CALL = recording(dispatch.REAL_CALL, recorder)

    def show() -> None:
        parts = [section(*part, links, position) for part in recorder.captured()]
        print(report(parts, calibrate(), links=links, position=position))

    atexit.register(show)

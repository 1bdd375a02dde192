"""Metal traces: calls between begin and end are recorded, and replayed on their addresses.

Only `execute_trace` executes a captured call. A replay reads and writes the addresses of its capture,
whatever their content is by then. Host transfers, synchronization and new programs are refused inside a
capture.

Each trace has an empty trace of the library beside it, because the mock captures no program. ttnn's own
accounts then hold: its trace ids, and the buffers that it tracks under TT_METAL_TRACE_ALLOC_TRACKING.
"""

from dataclasses import dataclass, field
from typing import Callable, NoReturn

import ttnn

# The library's own: start/install.py replaces them in ttnn.
from ttnn._ttnn.operations.trace import begin_trace_capture, end_trace_capture, release_trace

from golden_mesh import switches
from golden_mesh.errors import TraceError
from golden_mesh.hazards import meet

Extent = tuple[int, int]  # bytes of a bank: [start, end)


@dataclass
class Trace:
    mesh: ttnn.MeshDevice
    steps: list = field(default_factory=list)
    # At the end of the capture: the buffers (type, address), those that the trace writes, and the
    # memory that it writes without a buffer there.
    buffers: set[tuple[object, int]] = field(default_factory=set)
    results: set[tuple[object, int]] = field(default_factory=set)
    temporaries: set[tuple[object, Extent]] = field(default_factory=set)


class Traces:
    """run: computes one call."""

    def __init__(self, run: Callable):
        self.run = run
        self._traces: dict[int, Trace] = {}  # by the number of the trace id
        self.active: int | None = None  # the number of the capture under way

    @property
    def capturing(self) -> bool:
        return self.active is not None

    def record(self, step) -> None:
        self._traces[self.active].steps.append(step)

    def refuse(self, what: str, instead: str) -> NoReturn:
        """End a capture that metal would refuse, with a TraceError."""
        self._traces.pop(self.active, None)
        self.active = None
        raise TraceError(f"{what} inside a trace capture, which metal refuses: {instead}")

    def outside(self, what: str) -> None:
        """Refuse `what` during a capture."""
        if self.capturing:
            self.refuse(what, "do it before begin_trace_capture or after end_trace_capture")

    # ---- stand-ins for ttnn's functions

    def begin(self, mesh_device, *, cq_id=None):
        """Return the id that the library will give to its next trace, which `end` makes."""
        self.outside("begin_trace_capture")
        before = _empty_trace(mesh_device, cq_id)
        release_trace(mesh_device, before)
        self.active = int(before) + 1
        self._traces[self.active] = Trace(mesh_device)
        return type(before)(self.active)

    def end(self, mesh_device, trace_id, *, cq_id=None) -> None:
        if int(trace_id) != self.active:
            raise TraceError(f"end_trace_capture of trace {trace_id}, but the capture under way is {self.active}")
        self.active = None
        trace = self._traces[int(trace_id)]
        trace.buffers = {(kind, extent[0]) for kind, extent in _buffers(trace.mesh)}
        for slot in {slot for step in trace.steps for slot in step.writes}:
            if (slot.buffer_type, slot.address) in trace.buffers:
                trace.results.add((slot.buffer_type, slot.address))
            else:
                trace.temporaries.add((slot.buffer_type, (slot.address, slot.address + slot.size)))
        _empty_trace(mesh_device, cq_id)

    def execute(self, mesh_device, trace_id, *, cq_id=None, blocking=True) -> None:
        self.outside("execute_trace")
        trace = self._traces.get(int(trace_id))
        if trace is None:
            raise TraceError(f"execute_trace of trace {trace_id}, which was never captured or is released")
        if not switches.current.values:
            return
        _check_buffers(trace, trace_id, [trace.buffers, *(each.results for each in self._traces.values())])
        for step in trace.steps:
            self.run(step)

    def release(self, mesh_device, trace_id) -> None:
        if self._traces.pop(int(trace_id), None) is None:
            raise TraceError(f"release_trace of trace {trace_id}, which was never captured or is released")
        release_trace(mesh_device, trace_id)


def _empty_trace(mesh_device, cq_id):
    """Make a trace of the library's own and return its id."""
    trace_id = begin_trace_capture(mesh_device, cq_id=cq_id)
    end_trace_capture(mesh_device, trace_id, cq_id=cq_id)
    return trace_id


def _buffers(mesh_device) -> list[tuple[object, Extent]]:
    """Return the type and the extent of each allocated buffer."""
    buffers = ttnn._ttnn.reports.get_buffers([mesh_device])
    return [(each.buffer_type, (each.address, each.address + each.max_size_per_bank)) for each in buffers]


def _check_buffers(trace: Trace, trace_id, safe: list[set[tuple[object, int]]]) -> None:
    """Report the buffers that a replay is about to overwrite, except those in `safe`."""
    hit = []
    for kind, (start, end) in _buffers(trace.mesh):
        if any((kind, start) in each for each in safe):
            continue
        if any(of == kind and first < end and start < last for of, (first, last) in trace.temporaries):
            hit.append(f"{end - start} bytes a bank at {kind.name} address {start:#x}")
    if hit:
        what = f"{trace_id} overwrites {len(hit)} allocated buffers: {', '.join(hit[:4])}"
        meet("buffer where a live trace writes", "ttnn.execute_trace", what)

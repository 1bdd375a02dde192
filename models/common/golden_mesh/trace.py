"""Metal traces: the calls made between begin and end are recorded, and replayed on the same addresses.

As on a chip, what is captured is not executed until `execute_trace`, a replay reads and writes the addresses of its
capture whatever lives there by then, and host transfers, synchronisation and new programs are refused inside a capture.
"""

from typing import Callable, NoReturn

from models.common.golden_mesh.errors import TraceError


class Traces:
    def __init__(self, run: Callable):
        self._run = run
        self._steps: dict[int, list] = {}  # trace id -> calls
        self._active: int | None = None
        self._next = 0

    @property
    def capturing(self) -> bool:
        return self._active is not None

    def record(self, step) -> None:
        self._steps[self._active].append(step)

    def refuse(self, what: str, instead: str) -> NoReturn:
        """A capture that metal would refuse ends here."""
        self._steps.pop(self._active, None)
        self._active = None
        raise TraceError(f"{what} inside a trace capture, which metal refuses: {instead}")

    def outside(self, what: str) -> None:
        """Refuse `what` while a capture is under way."""
        if self.capturing:
            self.refuse(what, "do it before begin_trace_capture or after end_trace_capture")

    # ---- the functions that stand in for ttnn's

    def begin(self, mesh_device, *, cq_id=None) -> int:
        self.outside("begin_trace_capture")
        self._active, self._next = self._next, self._next + 1
        self._steps[self._active] = []
        return self._active

    def end(self, mesh_device, trace_id, *, cq_id=None) -> None:
        if trace_id != self._active:
            raise TraceError(f"end_trace_capture of trace {trace_id}, but the capture under way is {self._active}")
        self._active = None

    def execute(self, mesh_device, trace_id, *, cq_id=None, blocking=True) -> None:
        self.outside("execute_trace")
        if trace_id not in self._steps:
            raise TraceError(f"execute_trace of trace {trace_id}, which was never captured or is released")
        for step in self._steps[trace_id]:
            self._run(step)

    def release(self, mesh_device, trace_id) -> None:
        if self._steps.pop(trace_id, None) is None:
            raise TraceError(f"release_trace of trace {trace_id}, which was never captured or is released")

    def is_active(self, device) -> bool:
        return self.capturing

"""Metal traces of steps, and the two command queues that they leave free."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Callable, Hashable, Iterable

import ttnn
from ttnn.tools.trace_allocation_tracker import acknowledge_corruptible

from ..tt.mesh import TRACE_REGION_BYTES

COMPUTE, TRANSFER = 0, 1  # command queues


@dataclass
class Traces:
    """Runs the steps of a replica: op by op at first, when a step compiles and is captured, then by its trace.

    A step is a function of device tensors, known by its kind. It makes no host transfer. It writes to tensors that
    exist before it, or returns new ones. A returned tensor holds the result until another step runs: that step's trace
    may write to its memory.
    """

    mesh_device: ttnn.MeshDevice
    enabled: bool  # False runs every step op by op
    compiled: set[Hashable] = field(default_factory=set)  # kinds of work that have run to their end
    _captured: dict[Hashable, tuple[int, list[ttnn.Tensor]]] = field(default_factory=dict)  # trace ids and results
    _results: list[ttnn.Tensor] = field(default_factory=list)  # the last step's, if it ran op by op

    def run(self, kind: Hashable, step: Callable[[], list[ttnn.Tensor]], *, traced: bool = True) -> list[ttnn.Tensor]:
        """Launch a step; its tensors are ready when the compute queue has finished. traced: whether it has a trace."""
        self._free_results()
        traced = traced and self.enabled
        if traced and kind in self.compiled:
            self.capture(kind, step)
            trace_id, results = self._captured[kind]
            ttnn.execute_trace(self.mesh_device, trace_id, cq_id=COMPUTE, blocking=False)
            return results
        self.release_unless_compiled(kind)
        self._results = step()
        self.compiled.add(kind)
        if traced:
            self.capture(kind, step)
        return self._results

    def release_unless_compiled(self, kind: Hashable) -> None:
        """Release all traces before a kind of work compiles; they are captured again when used.

        A compiled program keeps semaphores in L1 and kernels, in memory that a trace may use for
        its temporaries: the next replay would overwrite them.
        """
        if kind not in self.compiled:
            self.release()

    def release(self) -> None:
        """Free all traces and their results."""
        while self._captured:
            _, (trace_id, results) = self._captured.popitem()
            ttnn.release_trace(self.mesh_device, trace_id)
            for tensor in results:
                ttnn.deallocate(tensor)
        self._free_results()

    def capture(self, kind: Hashable, step: Callable[[], list[ttnn.Tensor]]) -> None:
        """Capture a step, if it has run: a capture may not compile, and computes nothing."""
        if kind in self._captured or kind not in self.compiled:
            return
        trace_id = ttnn.begin_trace_capture(self.mesh_device, cq_id=COMPUTE)
        try:
            try:
                results = step()
            finally:  # the queue records until here, and release_trace does not end that
                ttnn.end_trace_capture(self.mesh_device, trace_id, cq_id=COMPUTE)
        except BaseException:
            ttnn.release_trace(self.mesh_device, trace_id)
            raise
        for tensor in results:
            acknowledge_corruptible(tensor)  # by traces that were captured before this one
        self._captured[kind] = trace_id, results

    def _free_results(self) -> None:
        while self._results:
            ttnn.deallocate(self._results.pop())


# Bytes of a chip's trace region for a layer of a trace, and for what surrounds the layers. Upper bounds, not measured
# here: tt-metal gives Llama-3.1-8B 25, 38 and 50 MB on N150, N300 and T3K (models/tt_transformers, trace_region_size).
# Those hold a decode trace and 4, 7 and 7 prefill traces of about 750 operations each: 5,900 to 7,700 bytes an
# operation. A layer here has up to 26.2 operations on average, and up to 50 surround the layers.
LAYER_BYTES, AROUND_BYTES = 202_000, 400_000


def trace_region(mesh_device: ttnn.MeshDevice) -> int:
    """Bytes of a chip's trace region."""
    view = ttnn.get_memory_view(mesh_device, ttnn.BufferType.TRACE)
    return view.num_banks * view.total_bytes_per_bank


def traces_that_fit(mesh_device: ttnn.MeshDevice, layers: int) -> int:
    """Traces of a model of `layers` layers that the region holds. A mesh without one keeps traces in free DRAM."""
    return (trace_region(mesh_device) or TRACE_REGION_BYTES) // (LAYER_BYTES * layers + AROUND_BYTES)


class Queues:
    """Orders the compute queue and the transfer queue, so that host copies run beside the computation.

    - A write waits for earlier steps, which may still read the tensor. Later steps wait for the write.
    - A read waits for earlier steps. Later steps, which overwrite the tensor, wait for the read.
    - With one queue (count 1) everything runs in the order of the program.

    events: whether reads run beside the host. Slow dispatch has no events, so a read blocks there.
    """

    def __init__(self, mesh_device: ttnn.MeshDevice, count: int, *, events: bool = True):
        self.mesh_device = mesh_device
        self.two = count == 2
        self.events = events
        self.transfer = TRANSFER if self.two else COMPUTE
        self.transfers: Counter[str] = Counter()  # "writes", "reads" and "bytes read" of chips so far

    def write(self, pairs: Iterable[tuple[ttnn.Tensor, ttnn.Tensor]]) -> None:
        """Copy (host tensor, device tensor) pairs."""
        self._wait(self.transfer, COMPUTE)
        for host, device in pairs:
            ttnn.copy_host_to_device_tensor(host, device, cq_id=self.transfer)
            self.transfers["writes"] += 1
        self._wait(COMPUTE, self.transfer)

    def read(self, tensor: ttnn.Tensor) -> "PendingRead":
        """Start to read one chip's tensor. The read waits for the steps launched so far."""
        self._wait(self.transfer, COMPUTE)
        self.transfers["reads"] += len(tensor.device_coords())
        self.transfers["bytes read"] += len(tensor.device_coords()) * tensor.volume() * tensor.element_size()
        host = tensor.cpu(blocking=not self.events, cq_id=self.transfer)
        done = ttnn.record_event(self.mesh_device, self.transfer) if self.events else None
        if self.two:
            ttnn.wait_for_event(COMPUTE, done)
        return PendingRead(host, done)

    def _wait(self, waiting: int, on: int) -> None:
        if self.two:
            ttnn.wait_for_event(waiting, ttnn.record_event(self.mesh_device, on))


@dataclass(frozen=True, eq=False)
class PendingRead:
    """A host tensor that a transfer is still filling."""

    host: ttnn.Tensor
    done: Any  # the event at the transfer's end; None: the tensor is complete

    def token_ids(self) -> list[int]:
        """Wait for the transfer of a step's 32 token ids, one a slot."""
        if self.done is not None:
            ttnn.event_synchronize(self.done)
        return ttnn.to_torch(self.host).flatten().tolist()

"""Metal traces and the two command queues that they leave free."""

from typing import Callable, Optional

import ttnn
from ttnn.tools.trace_allocation_tracker import acknowledge_corruptible

COMPUTE, TRANSFER = 0, 1  # command queues


class TracedStep:
    """A function of device tensors: the first call runs it op by op and captures it; later calls replay the trace.

    The first run compiles, which a capture may not. A capture computes nothing, so the first run gives the result.
    step: makes no host transfer. It writes to tensors that exist before it, or returns new ones. A returned
    tensor holds the result until another step is launched: that step's trace may write to its memory.
    """

    def __init__(self, mesh_device: ttnn.MeshDevice, step: Callable[[], list[ttnn.Tensor]]):
        self.mesh_device = mesh_device
        self.step = step
        self.trace: Optional[int] = None
        self._captured: list[ttnn.Tensor] = []
        self._untraced: list[ttnn.Tensor] = []

    def run(self, *, traced: bool) -> list[ttnn.Tensor]:
        """Launch the step; return its tensors, which are ready when the compute queue has finished.

        traced: replay the trace, or capture it if there is none. Else: op by op.
        """
        self.free_untraced()
        if traced and self.trace is not None:
            ttnn.execute_trace(self.mesh_device, self.trace, cq_id=COMPUTE, blocking=False)
            return self._captured
        self._untraced = self.step()
        if traced:
            self.trace = ttnn.begin_trace_capture(self.mesh_device, cq_id=COMPUTE)
            self._captured = self.step()
            ttnn.end_trace_capture(self.mesh_device, self.trace, cq_id=COMPUTE)
            for tensor in self._captured:
                acknowledge_corruptible(tensor)  # by traces that were captured before this one
        return self._untraced

    def free_untraced(self) -> None:
        """Free the tensors that a run op by op returned. Call it before another step is launched."""
        for tensor in self._untraced:
            ttnn.deallocate(tensor)
        self._untraced = []

    def release(self) -> None:
        """Free the trace; the next traced run captures it again."""
        if self.trace is not None:
            ttnn.release_trace(self.mesh_device, self.trace)
            self.trace = None
        self.free_untraced()
        for tensor in self._captured:
            ttnn.deallocate(tensor)
        self._captured = []


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

    def write(self, pairs: list[tuple[ttnn.Tensor, ttnn.Tensor]]) -> None:
        """Copy (host tensor, device tensor) pairs."""
        self._wait(self.transfer, COMPUTE)
        for host, device in pairs:
            ttnn.copy_host_to_device_tensor(host, device, cq_id=self.transfer)
        self._wait(COMPUTE, self.transfer)

    def read(self, tensor: ttnn.Tensor) -> "PendingRead":
        """Start to read one chip's tensor. The read waits for the steps launched so far."""
        self._wait(self.transfer, COMPUTE)
        host = tensor.cpu(blocking=not self.events, cq_id=self.transfer)
        done = ttnn.record_event(self.mesh_device, self.transfer) if self.events else None
        if self.two:
            ttnn.wait_for_event(COMPUTE, done)
        return PendingRead(host, done)

    def _wait(self, waiting: int, on: int) -> None:
        if self.two:
            ttnn.wait_for_event(waiting, ttnn.record_event(self.mesh_device, on))


class PendingRead:
    """A host tensor that a transfer is still filling."""

    def __init__(self, host: ttnn.Tensor, done):
        """done: the event at the transfer's end; None: the tensor is complete."""
        self._host = host
        self.done = done

    def get(self) -> ttnn.Tensor:
        """Wait for the transfer; return the tensor."""
        if self.done is not None:
            ttnn.event_synchronize(self.done)
        return self._host

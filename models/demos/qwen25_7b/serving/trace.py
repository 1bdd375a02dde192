"""Metal traces and the two command queues that they leave free."""

from typing import Callable, Optional

import ttnn

COMPUTE, TRANSFER = 0, 1  # command queues


class TracedStep:
    """A function of device tensors: run op by op the first time, captured then, and replayed from the second time on.

    The first run compiles, which a capture may not, and its result counts like any other; a capture computes nothing.
    step: makes no host transfer and leaves its results in tensors that were there before, or returns new ones (what a run
    op by op returned is freed when the step runs again).
    """

    def __init__(self, mesh_device: ttnn.MeshDevice, step: Callable[[], list[ttnn.Tensor]]):
        self.mesh_device, self.step = mesh_device, step
        self.trace: Optional[int] = None
        self._of_capture: list[ttnn.Tensor] = []
        self._of_run: list[ttnn.Tensor] = []

    def run(self, *, traced: bool) -> list[ttnn.Tensor]:
        """Start the step; what it returns may be read once the compute queue is through with it.

        traced: not op by op, and captured for the next time if it is not yet.
        """
        for tensor in self._of_run:
            ttnn.deallocate(tensor)
        self._of_run = []
        if traced and self.trace is not None:
            ttnn.execute_trace(self.mesh_device, self.trace, cq_id=COMPUTE, blocking=False)
            return self._of_capture
        self._of_run = self.step()
        if traced:
            self.trace = ttnn.begin_trace_capture(self.mesh_device, cq_id=COMPUTE)
            self._of_capture = self.step()
            ttnn.end_trace_capture(self.mesh_device, self.trace, cq_id=COMPUTE)
        return self._of_run

    def release(self) -> None:
        """Give the trace's memory back; the step goes on op by op, and is captured again."""
        if self.trace is not None:
            ttnn.release_trace(self.mesh_device, self.trace)
            self.trace = None
        for tensor in (*self._of_capture, *self._of_run):
            ttnn.deallocate(tensor)
        self._of_capture, self._of_run = [], []


class Queues:
    """Order between the compute queue and the transfer queue: host copies go beside the computation, not through it.

    A write waits for the steps before it, which may still read what it overwrites, and the steps after it wait for the
    write; a read waits for the steps before it, and the steps after it, which overwrite what it reads, for the read.
    With one queue (count 1) the program's order is the order.
    events: whether a read may go on beside the host; slow dispatch has no events, there it is waited for at once.
    """

    def __init__(self, mesh_device: ttnn.MeshDevice, count: int, *, events: bool = True):
        self.mesh_device, self.two, self.events = mesh_device, count == 2, events
        self.transfer = TRANSFER if self.two else COMPUTE

    def write(self, pairs: list[tuple[ttnn.Tensor, ttnn.Tensor]]) -> None:
        """Copy (host tensor, device tensor) pairs."""
        self._wait(self.transfer, COMPUTE)
        for host, device in pairs:
            ttnn.copy_host_to_device_tensor(host, device, cq_id=self.transfer)
        self._wait(COMPUTE, self.transfer)

    def read(self, tensor: ttnn.Tensor) -> "PendingRead":
        """Start reading a tensor of one chip as it will be after the steps so far."""
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
    """A host tensor that is on its way."""

    def __init__(self, host: ttnn.Tensor, done):
        """done: the event that says that it is there; None: it is."""
        self._host, self.done = host, done

    def get(self) -> ttnn.Tensor:
        """Wait for it."""
        if self.done is not None:
            ttnn.event_synchronize(self.done)
        return self._host

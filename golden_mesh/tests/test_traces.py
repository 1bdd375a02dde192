"""Traces: recorded without execution, replayed on their addresses. Calls that metal refuses are refused."""

import re

import pytest
import torch
import ttnn

from golden_mesh.errors import GoldenError, TraceError
from golden_mesh.hazards import noted
from golden_mesh.mesh.trace import Trace, _check_buffers

SHAPE = (1, 1, 32, 96)


class Traced:
    """x -> 3 * x + 1, to be captured. A replay puts its result into `output`."""

    def __init__(self, golden, *shape):
        self.golden, self.shape = golden, shape
        self.input = golden.full(1, *shape)
        self.step()  # compiles, which a capture may not do

    def capture(self):
        self.id, self.output = self.golden.capture(self.step)
        return self

    def step(self):
        tripled = ttnn.mul(self.input, 3.0)
        self.temporary = tripled.buffer_address()
        result = ttnn.add(tripled, 1.0)
        ttnn.deallocate(tripled)
        return result

    def feed(self, value: float) -> None:
        ttnn.copy_host_to_device_tensor(self.golden.host(torch.full(self.shape, value)), self.input)

    def replay(self, blocking: bool = True) -> None:
        ttnn.execute_trace(self.golden.device, self.id, cq_id=0, blocking=blocking)

    def release(self) -> None:
        ttnn.release_trace(self.golden.device, self.id)
        self.id = None


@pytest.fixture
def traced(golden):
    traced = Traced(golden, *SHAPE).capture()
    yield traced
    if traced.id is not None:
        traced.release()


def test_a_capture_is_not_executed_and_a_replay_computes_from_what_the_addresses_hold(traced, golden):
    with pytest.raises(GoldenError, match=f"result of trace {int(traced.id)}, which was captured and not executed"):
        golden.get(traced.output)
    assert golden.holds(traced.input, 1)
    for value, blocking in ((1, True), (2, False), (-5, True)):
        traced.feed(value)
        traced.replay(blocking)
        assert golden.holds(traced.output, 3 * value + 1)


def test_replays_of_two_traces_interleave(golden):
    one, other = Traced(golden, *SHAPE), Traced(golden, 1, 1, 64, 32)  # inputs before captures
    other.capture()
    one.capture()
    for value in (4, 5):
        one.feed(value)
        other.feed(-value)
        one.replay()
        assert golden.holds(one.output, 3 * value + 1)
        other.replay()
        assert golden.holds(other.output, -3 * value + 1)
    one.release()
    other.release()


def test_an_op_in_place_is_replayed_in_place(golden):
    counter = golden.put_ints([[0] * 32])
    ttnn.plus_one(counter)
    trace, _ = golden.capture(lambda: ttnn.plus_one(counter))
    assert golden.holds(counter, 1), "the capture itself counts nothing"
    for expected in (2, 3, 4):
        ttnn.execute_trace(golden.device, trace, cq_id=0, blocking=True)
        assert golden.holds(counter, expected)
    ttnn.release_trace(golden.device, trace)


def test_a_replay_overwrites_tensors_allocated_in_its_temporaries_memory(traced, golden):
    """Every traced program has this hazard: memory allocated after the capture may overlap memory that the replay
    writes.
    """
    neighbors = [golden.full(7, *SHAPE) for _ in range(3)]
    hit = [x for x in neighbors if x.buffer_address() == traced.temporary]
    assert len(hit) == 1, "the allocator did not give the temporary's memory out again"
    wider = [x for x in neighbors if x is not hit[0]]
    ttnn.deallocate(hit[0])
    larger = golden.full(7, 1, 1, 32, 64)  # another size there: neither reads the other's value
    assert larger.buffer_address() == traced.temporary
    hazard = "buffer where a live trace writes", "ttnn.execute_trace"
    before = noted[hazard]
    traced.replay()
    assert noted[hazard] == before + 1
    with pytest.raises(GoldenError, match=rf"\[1, 1, 32, 64\].*{traced.temporary:#x}"):
        golden.get(larger)
    assert all(golden.holds(x, 7) for x in wider) and golden.holds(traced.output, 4)
    ttnn.deallocate(larger)
    traced.replay()
    assert noted[hazard] == before + 1, "the trace writes to none of the other neighbours"


@pytest.mark.parametrize("start, end, is_hit", [(0, 64, 0), (0, 96, 1), (80, 96, 1), (96, 192, 1), (128, 192, 0)])
def test_a_replay_that_writes_beside_a_buffer_is_no_hazard(monkeypatch, start, end, is_hit):
    dram, hazard = ttnn.BufferType.DRAM, ("buffer where a live trace writes", "ttnn.execute_trace")
    monkeypatch.setattr("golden_mesh.mesh.trace._buffers", lambda mesh: [(dram, (start, end))])
    before = noted[hazard]
    _check_buffers(Trace(None, temporaries={(dram, (64, 128))}), 1, set())
    assert noted[hazard] == before + is_hit


def test_a_replay_reads_what_its_capture_deallocated(golden):
    """The trace keeps the address. The memory keeps its content until the next write."""
    x = golden.full(1, 1, 1, 64, 96)
    ttnn.deallocate(ttnn.add(x, 1.0))

    def step():
        y = ttnn.add(x, 1.0)
        ttnn.deallocate(x)
        return y

    trace, y = golden.capture(step)
    ttnn.execute_trace(golden.device, trace, cq_id=0, blocking=True)
    assert golden.holds(y, 2)
    ttnn.release_trace(golden.device, trace)


def test_a_replay_whose_input_was_overwritten_is_refused(traced, golden):
    address = traced.input.buffer_address()
    ttnn.deallocate(traced.input)
    other = golden.full(7, 1, 1, 32, 64)
    assert other.buffer_address() == address
    with pytest.raises(GoldenError, match=rf"\[1, 1, 32, 96\].*{address:#x}"):
        traced.replay()


def host(golden):
    return golden.host(torch.ones(1, 1, 32, 32))


REFUSED = {
    "read": lambda golden, x: ttnn.to_torch(ttnn.get_device_tensors(x)[0]),
    "Tensor.cpu": lambda golden, x: x.cpu(),
    "from_device": lambda golden, x: ttnn.from_device(x),
    "from_torch": lambda golden, x: golden.full(1),
    "Tensor()": lambda golden, x: ttnn.Tensor(torch.ones(2, 2), ttnn.float32, golden.device),
    "copy_host_to_device_tensor": lambda golden, x: ttnn.copy_host_to_device_tensor(host(golden), x),
    "copy_device_to_host_tensor": lambda golden, x: ttnn.copy_device_to_host_tensor(x, host(golden)),
    "Tensor.to": lambda golden, x: host(golden).to(golden.device),
    "synchronize_device": lambda golden, x: ttnn.synchronize_device(golden.device),
    "record_event": lambda golden, x: ttnn.record_event(golden.device, 0),
    "wait_for_event": lambda golden, x: ttnn.wait_for_event(0, None),
    "begin_trace_capture": lambda golden, x: ttnn.begin_trace_capture(golden.device, cq_id=0),
    "execute_trace": lambda golden, x: ttnn.execute_trace(golden.device, 0, cq_id=0),
    "a new program, softplus": lambda golden, x: ttnn.softplus(ttnn.reshape(x, (1, 1, 16, 64))),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_capture_refuses(golden, what):
    """The refusal names the call and ends the capture, and the program can go on."""
    golden.device.clear_program_cache()  # drops the programs of other tests
    x = golden.full(1)
    ttnn.reshape(x, (1, 1, 16, 64))
    ttnn.begin_trace_capture(golden.device, cq_id=0)
    name = {"a new program, softplus": "ttnn.softplus compiled a new program"}.get(what)
    with pytest.raises(TraceError, match=name):
        REFUSED[what](golden, x)
    assert golden.holds(ttnn.add(x, 1.0), 2)


def test_ttnn_is_told_of_a_capture(golden):
    trace, during = golden.capture(lambda: ttnn.is_trace_capture_active(golden.device))
    assert during and not ttnn.is_trace_capture_active(golden.device)
    ttnn.release_trace(golden.device, trace)


def test_only_the_capture_under_way_can_be_ended_and_a_released_trace_is_gone(traced, golden):
    number = traced.id
    with pytest.raises(TraceError):
        ttnn.end_trace_capture(golden.device, number, cq_id=0)
    traced.replay()
    assert golden.holds(traced.output, 4), "the trace is none the worse"
    traced.release()
    for use in (ttnn.execute_trace, ttnn.release_trace):
        with pytest.raises(TraceError, match=re.escape(f"{number}")):
            use(golden.device, number)


# On a mesh without a trace region: ttnn 0.81.1 then stores a trace in free DRAM.
TRACKING = """
import ttnn
mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
x = ttnn.full((32, 32), 1.0, layout=ttnn.TILE_LAYOUT, device=mesh)
ttnn.add(x, 1.0)
trace = ttnn.begin_trace_capture(mesh, cq_id=0)
y = ttnn.add(x, 1.0)
ttnn.end_trace_capture(mesh, trace, cq_id=0)
ttnn.execute_trace(mesh, trace, cq_id=0)
print(ttnn.to_torch(y)[0, 0].item())
late = ttnn.add(x, 1.0)
try:
    ttnn.execute_trace(mesh, trace, cq_id=0)
except RuntimeError as error:
    print(f"Buffer {late.buffer_unique_id()} " in str(error), "1 device buffer" in str(error))
ttnn.release_trace(mesh, trace)
ttnn.close_mesh_device(mesh)
"""


def test_ttnns_tracking_of_allocations_reports_a_live_buffer(run_as):
    printed = run_as("N150", TRACKING, TT_METAL_TRACE_ALLOC_TRACKING="1")
    assert printed.endswith("2.0\nTrue True\n")


@pytest.mark.parametrize("queue", [0, None, ttnn.QueueId(0)])
def test_a_program_may_record_any_number_of_events(golden, queue):
    """Nothing takes events and reads out of a mock's queue: with all 8,192 places taken, ttnn waits for ever."""
    for _ in range(9000):
        event = ttnn.record_event(golden.device, cq_id=queue)
    ttnn.event_synchronize(event)


def test_a_program_may_copy_to_the_host_any_number_of_times(golden):
    x, copy = golden.full(3), host(golden)
    for _ in range(9000):
        ttnn.copy_device_to_host_tensor(x, copy)
    assert (ttnn.to_torch(ttnn.get_device_tensors(copy)[0]) == 3).all()
    with pytest.raises(RuntimeError):
        ttnn.copy_device_to_host_tensor(golden.full(3, 1, 1, 64, 64), copy)

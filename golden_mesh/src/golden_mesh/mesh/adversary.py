"""golden-mesh --adversarial SEED: queues, chips and transfers run as late as the program allows, and races are named.

A card hides these faults in nearly every run. Off, nothing of this module is loaded.

- Queues. Calls of one command queue run in order. Another queue is only behind a call that an event, or the host, has
  waited for. A call that reads memory which another queue may still write, or writes what another may still read, is
  named.
- Reads in flight. A host tensor of a read that does not block holds NaN (integers are drawn by the seed) until the
  program waits for the read.
- Chips. A chip may be as far ahead of its neighbor as a collective allows. It then writes into the neighbor's memory
  while the neighbor still runs what stands between two collectives. A buffer or a semaphore in both is named.
- Padding that nothing wrote is NaN on the host, too.
"""

import functools
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, NamedTuple
from unittest.mock import patch

import torch
import ttnn

from golden_mesh import switches
from golden_mesh.errors import RaceError
from golden_mesh.mesh import dispatch, doors, transfer
from golden_mesh.mesh.arguments import on_device, tensors_in
from golden_mesh.mesh.memory import Slot
from golden_mesh.mesh.steps import Step
from golden_mesh.program import lines, place

Queue = tuple[int, int]  # mesh id, command queue
Clock = Counter[Queue]  # calls of each queue that are surely over
Place = tuple  # of memory: chip, buffer type, address
# They wait for no other chip.
_LOCAL = frozenset("ttnn.mesh_partition ttnn.moe_expert_token_remap ttnn.point_to_point".split())
_PADDED = (ttnn.bfloat16, ttnn.float32)


class Access(NamedTuple):
    queue: Queue
    count: int  # of the queue's calls
    what: str  # operation and line


@dataclass
class Call:
    """A call of the program: where it stands, its queue, and what of its arguments other chips write."""

    what: str
    queue: Queue
    chips: int  # of the mesh
    semaphores: set[Place] = field(default_factory=set)
    remote: set[Place] = field(default_factory=set)


class Event(NamedTuple):
    """An event of the library's, and what is over when it has come."""

    real: Any
    clock: Clock


class Adversary:
    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.clocks: dict[Queue, Clock] = defaultdict(Counter)  # what is over before a queue's next call
        self.host: Clock = Counter()  # what the program has waited for
        self.written: dict[Place, Access] = {}
        self.read: dict[Place, dict[Queue, Access]] = defaultdict(dict)
        self.flying: list[tuple[Access, Callable[[], None]]] = []  # reads, and what completes each
        self.call: Call | None = None  # under way
        self.captured: dict[Step, Call] = {}  # the calls of captured steps
        self.since: dict[Place, str] = {}  # memory and semaphores since the last collective began -> by which call
        self.last: Access | None = None  # step

    # ---- queues

    def access(self, what: str, queue: Queue, reads: Iterator[Slot], writes: Iterator[Slot]) -> Access:
        """Name the call if another queue may still write what it reads, or use what it writes."""
        clock = self.clocks[queue]
        clock |= self.host  # what the program has waited for is over
        clock[queue] += 1
        access = Access(queue, clock[queue], what)
        for slot, at in ((slot, at) for slot in reads for at in _places(slot)):
            self._over(clock, self.written.get(at), what, "reads", slot, "writes")
            self.read[at][queue] = access
        for slot, at in ((slot, at) for slot in writes for at in _places(slot)):
            self._over(clock, self.written.get(at), what, "writes", slot, "writes")
            for other in self.read.pop(at, {}).values():
                self._over(clock, other, what, "writes", slot, "reads")
            self.written[at] = access
        return access

    def _over(self, clock: Clock, other: Access | None, what: str, does: str, slot: Slot, did: str) -> None:
        if other is not None and clock[other.queue] < other.count:
            raise RaceError(
                f"{what} {does} {slot} on queue {self.call.queue[1]}, which {other.what} on queue {other.queue[1]} may "
                f"still {did[:-1]}: wait_for_event({self.call.queue[1]}, record_event(mesh, {other.queue[1]})) between "
                "them"
            )

    def wait(self, clock: Clock, all_chips: bool = True) -> None:
        """The program waits until the clock's calls are over. Reads in flight complete in an order drawn by the seed.

        all_chips: not only those of one chip, so that no chip is behind.
        """
        self.host |= clock
        if all_chips and self.last and self.last.count <= self.host[self.last.queue]:
            self.since = {}
        arrived = [each for each in self.flying if each[0].count <= self.host[each[0].queue]]
        self.flying = [each for each in self.flying if each not in arrived]
        self.random.shuffle(arrived)
        for _, complete in arrived:
            complete()

    def forget_mesh(self, real: Callable, devices: list[int]) -> None:
        """A mesh was opened or closed: nothing is under way."""
        for each in (self.written, self.read, self.since, self.flying, self.captured):
            each.clear()
        real(devices)

    # ---- steps

    def record(self, real: Callable, step) -> None:
        """Keep a step of a trace."""
        self.captured[step] = self.call
        real(step)

    def run(self, real: Callable, step) -> None:
        """Run a step of the program, or of a trace's replay."""
        call = self.captured.get(step, self.call)
        if call is not None:
            self._chips_ahead(step, call)
            self.last = self.access(call.what, (self.call or call).queue, step.inputs, step.writes)
        real(step)

    def _chips_ahead(self, step, call: Call) -> None:
        """Name a collective that writes, on a chip that is behind, what was used since the last collective began."""
        used = {at: call.what for slot in (*step.inputs, *step.writes) for at in _places(slot)}
        mine = call.remote | call.semaphores
        if step.golden.over_chips and step.golden.name not in _LOCAL and len(step.inputs[0].devices) > 1:
            for each in sorted(mine & self.since.keys(), key=repr):
                kind = "semaphore" if each in call.semaphores else "buffer"
                late = self.random.choice(step.inputs[0].devices)
                raise RaceError(
                    f"{call.what} writes a {kind} at address {each[-1]:#x} of chip {late}, which may be behind by a "
                    f"collective and still in {self.since[each]}: take two {kind}s in turn, or a barrier_semaphore"
                )
            self.since = {}
        self.since |= used | dict.fromkeys(mine, call.what)

    # ---- transfers

    def read_to_host(self, call: Call, slots: list[Slot], host, blocking: bool) -> None:
        """A read was enqueued. host: the tensor that it fills."""
        access = self.access(call.what, call.queue, slots, [])
        if blocking:
            self.wait(self.clocks[call.queue], all_chips=len(slots[0].devices) == call.chips)
            return
        shards = [transfer.bytes_of(shard) for shard in ttnn.get_device_tensors(host)]
        values = [shard.clone() for shard in shards]
        for shard in shards:
            shard.fill_(self.random.randrange(1, 255) if "INT" in host.dtype.name else 255)  # bytes of NaN
        self.flying.append((access, lambda: [shard.copy_(value) for shard, value in zip(shards, values)]))


def _places(slot: Slot) -> list[Place]:
    return [(device, slot.buffer_type, slot.address) for device in slot.devices]


def _queue_id(cq_id) -> int:
    if cq_id is None:
        cq_id = ttnn.get_current_command_queue_id_for_thread()
    return int(getattr(cq_id, "value", cq_id) or 0)


def _semaphores(values) -> Iterator[Place]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _semaphores(value)
        elif type(value).__name__ == "global_semaphore":
            yield "semaphore", ttnn.get_global_semaphore_address(value)


def start(seed: int) -> None:
    """Let this process's golden mesh be an adversary."""
    adversary, traces = Adversary(seed), dispatch.traces
    real_call, methods = dispatch.OPERATION.__call__, ("cpu", "item", "to_list", "to_numpy", "to_torch", "to")

    def calling(name: str, real: Callable, args: tuple, kwargs: dict) -> Any:
        """Run a call of the program with `adversary.call` set, and follow it if it is a transfer."""
        given = [t for t in tensors_in((args, kwargs)) if on_device(t) and t.is_allocated()]
        mesh = next((v for v in (*args, *kwargs.values()) if isinstance(v, ttnn.MeshDevice)), None)
        mesh = given[0].device() if given else mesh
        if mesh is None or dispatch.inside() or not switches.current.values:
            return real(*args, **kwargs)
        (file, line), *_ = lines(1) or [("?", 0)]
        queue = mesh.id(), _queue_id(kwargs.get("cq_id", kwargs.get("queue_id")))
        call = Call(f"{name} ({place(file, line)})", queue, mesh.get_num_devices())
        if "barrier_semaphore" not in kwargs and name.startswith("ttnn.experimental."):
            call.semaphores = set(_semaphores((*args, *kwargs.values())))
            call.remote = {at for t in given[1:] for at in _places(dispatch.slot_of(t))} if call.semaphores else set()
        slots = [dispatch.slot_of(t) for t in given] if _moves(name) else []
        with patch.object(adversary, "call", call):
            result = real(*args, **kwargs)
            if _moves(name):
                _follow(adversary, call, name, args, kwargs, slots, result)
        return result

    def operation(op, *args, **kwargs):
        return calling(op.python_fully_qualified_name, functools.partial(real_call, op), args, kwargs)

    def method(name: str, real: Callable) -> Callable:
        return lambda self, *args, **kwargs: calling(f"ttnn.Tensor.{name}", real, (self, *args), kwargs)

    dispatch.OPERATION.__call__ = operation
    for name in methods:
        setattr(ttnn.Tensor, name, method(name, getattr(ttnn.Tensor, name)))
    for owner, name in ((dispatch, "run"), (traces, "run"), (traces, "record"), (dispatch, "forget_mesh")):
        setattr(owner, name, functools.partial(getattr(adversary, name), getattr(owner, name)))
    known = transfer.known_padding

    def padding(tensor, slot):
        found = known(tensor, slot)
        is_padded = tuple(tensor.padded_shape) != tuple(tensor.shape) and tensor.dtype in _PADDED
        return torch.nan if found is None and is_padded else found

    transfer.known_padding = padding
    doors.install(_stand_ins(adversary))


def _moves(name: str) -> bool:
    return name in dispatch.HANDLERS or name.startswith("ttnn.Tensor.")


def _follow(adversary: Adversary, call: Call, name: str, args, kwargs, slots: list[Slot], result) -> None:
    """Tell the adversary what a transfer reads and writes."""
    made = [dispatch.slot_of(t) for t in tensors_in(result) if on_device(t)]
    on_host = [t for t in tensors_in(result) if not on_device(t)]
    if name == "ttnn.copy_host_to_device_tensor":
        adversary.access(call.what, call.queue, [], slots)
    elif name == "ttnn.copy_device_to_host_tensor":
        host = next(t for t in tensors_in((args, kwargs)) if not on_device(t))
        blocking = kwargs.get("blocking", args[2] if len(args) > 2 else True)
        adversary.read_to_host(call, slots, host, blocking)
    elif slots and not made and name != "ttnn.deallocate":
        waits = name not in ("ttnn.Tensor.cpu", "ttnn.from_device") or not on_host
        blocking = kwargs.get("blocking", args[1] if name == "ttnn.Tensor.cpu" and len(args) > 1 else True)
        adversary.read_to_host(call, slots, on_host[0] if on_host else None, waits or blocking)
    elif made and not slots and name in ("ttnn.to_device", "ttnn.from_torch", "ttnn.Tensor.to"):
        adversary.access(call.what, call.queue, [], made)


def _stand_ins(adversary: Adversary) -> dict[str, doors.StandIn]:
    """Stand-ins for events and waiting, and for a trace's replay, which has a queue."""

    def record_event(real, mesh_device, cq_id=None, *args, **kwargs):
        queue = mesh_device.id(), _queue_id(cq_id)
        adversary.clocks[queue] |= adversary.host
        return Event(real(mesh_device, cq_id, *args, **kwargs), adversary.clocks[queue].copy())

    def wait_for_event(real, cq_id=None, mesh_event=None):
        real(cq_id, mesh_event.real)
        for mesh in {queue[0] for queue in mesh_event.clock}:
            adversary.clocks[mesh, _queue_id(cq_id)] |= mesh_event.clock

    def event_synchronize(real, mesh_event):
        real(mesh_event.real)
        adversary.wait(mesh_event.clock)

    def synchronize_device(real, device, cq_id=None, *args, **kwargs):
        real(device, cq_id, *args, **kwargs)
        for queue in list(adversary.clocks):
            if queue[0] == device.id() and (cq_id is None or queue[1] == _queue_id(cq_id)):
                adversary.wait(adversary.clocks[queue])

    def execute_trace(real, mesh_device, trace_id, *, cq_id=None, blocking=True):
        queue = mesh_device.id(), _queue_id(cq_id)
        call = Call(f"execute_trace of {trace_id}", queue, mesh_device.get_num_devices())
        with patch.object(adversary, "call", call):
            real(mesh_device, trace_id, cq_id=cq_id, blocking=blocking)
        if blocking:
            adversary.wait(adversary.clocks[queue])

    return {
        "events.record_event": record_event,
        "events.wait_for_event": wait_for_event,
        "events.event_synchronize": event_synchronize,
        "device.synchronize_device": synchronize_device,
        "operations.trace.execute_trace": execute_trace,
    }

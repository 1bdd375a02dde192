"""Two command queues run in any order that their events allow.

Every step sees the inputs written for it, and every read returns its own step's result.
A golden mesh runs calls in order, so it could not find an error here.
"""

import random
from types import SimpleNamespace

import pytest

from models.demos.qwen25_7b.engine import trace
from models.demos.qwen25_7b.engine.trace import COMPUTE, Queues

STEPS = 12


class TwoQueues:
    """A device that executes its queues in random order, whenever the host waits."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.commands = {0: [], 1: []}
        self.happened = set()
        self.events = 0

    def put(self, queue: int, command) -> None:
        self.commands[queue].append(command)

    def record_event(self, mesh, queue: int) -> int:
        self.events += 1
        self.put(queue, lambda event=self.events: self.happened.add(event) or True)
        return self.events

    def wait_for_event(self, queue: int, event: int) -> None:
        self.put(queue, lambda: event in self.happened)

    def event_synchronize(self, event: int) -> None:
        while event not in self.happened:
            self.work()

    def copy(self, host, device, cq_id) -> None:
        self.put(cq_id, lambda value=host: device.__setattr__("value", value) or True)

    def work(self) -> None:
        """Execute the next command of one queue that does not wait."""
        queues = [queue for queue in self.commands if self.commands[queue]]
        self.random.shuffle(queues)
        for queue in queues:
            if self.commands[queue][0]():
                self.commands[queue].pop(0)
                return
        assert not queues, "the queues wait for each other"


class Tensor:
    """A tensor of one number on one chip."""

    device_coords, volume, element_size = lambda self: [0], lambda self: 1, lambda self: 4

    def __init__(self, device: TwoQueues, value: int):
        self.device, self.value = device, value

    def cpu(self, blocking: bool, cq_id: int):
        assert not blocking
        host = SimpleNamespace(value=None)
        self.device.put(cq_id, lambda: host.__setattr__("value", self.value) or True)
        return host


@pytest.fixture(params=range(40))
def device(request, monkeypatch):
    device = TwoQueues(request.param)
    for name, stand_in in {
        "record_event": device.record_event,
        "wait_for_event": device.wait_for_event,
        "event_synchronize": device.event_synchronize,
        "copy_host_to_device_tensor": device.copy,
    }.items():
        monkeypatch.setattr(trace.ttnn, name, stand_in)
    return device


@pytest.mark.parametrize("ahead", (1, 2))
def test_each_step_has_its_noise_and_each_read_its_result(device, ahead):
    """Each step combines its noise with the previous step's token, as decode does.

    Some steps get no new noise, as in a greedy batch. Some steps are not read, as prefill batches
    that sample no token.
    """
    queues, pending, read, expected = Queues(None, 2), [], [], []
    token, noise = Tensor(device, 0), Tensor(device, 0)
    pattern, now, sampled = random.Random(ahead), 0, 0

    def step() -> bool:
        token.value = 3 * token.value + noise.value
        return True

    for i in range(STEPS):
        if pattern.random() < 0.5:
            sampled = i
            queues.write([(i, noise)])
        device.put(COMPUTE, step)
        now = 3 * now + sampled
        if pattern.random() < 0.7:
            pending.append(queues.read(token))
            expected.append(now)
        if len(pending) == ahead:
            read.append(pending.pop(0).get().value)
    read += [each.get().value for each in pending]
    assert read == expected

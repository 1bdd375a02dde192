"""What a decode step costs the host: all of it, and the part that is not inside ttnn."""

import time
from contextlib import contextmanager
from statistics import median
from typing import Callable, Iterator, NamedTuple

import torch
import ttnn

from models.demos.qwen25_7b.config import MAX_USERS
from models.demos.qwen25_7b.config.sampling import CANDIDATES
from models.demos.qwen25_7b.serving.replica import Replica

# All that Replica calls of ttnn between two traced steps.
CALLS = [
    (ttnn, name)
    for name in (
        "execute_trace", "record_event", "wait_for_event", "event_synchronize", "copy_host_to_device_tensor", "from_torch",
        "to_torch",
    )
] + [(ttnn.Tensor, "cpu")]  # fmt: skip


class HostTime(NamedTuple):
    """Seconds a step, the median of many."""

    whole: float
    ours: float  # outside the ttnn calls of CALLS


@contextmanager
def _inside_ttnn() -> Iterator[list[float]]:
    """Adds up, in the list's one item, the seconds spent in CALLS."""
    spent, real = [0.0], [getattr(owner, name) for owner, name in CALLS]

    def timed(call: Callable) -> Callable:
        def timed_call(*args, **kwargs):
            begin = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                spent[0] += time.perf_counter() - begin

        return timed_call

    for (owner, name), call in zip(CALLS, real):
        setattr(owner, name, timed(call))
    try:
        yield spent
    finally:
        for (owner, name), call in zip(CALLS, real):
            setattr(owner, name, call)


def steps_of(replica: Replica) -> dict[str, Callable[[], None]]:
    """What a replica does between two tokens: launch and read, and before that send noise where users sample."""
    noise = torch.zeros(MAX_USERS, CANDIDATES)

    def greedy():
        replica.launch()
        replica.read()

    def sampled():
        replica.place_noise(noise)
        greedy()

    return {"greedy": greedy, "sampled": sampled}


def host_time(step: Callable[[], None], steps: int = 50) -> HostTime:
    """step: launches and reads once; called first to warm up."""
    for _ in range(3):
        step()
    whole, ours = [], []
    with _inside_ttnn() as spent:
        for _ in range(steps):
            spent[0], begin = 0.0, time.perf_counter()
            step()
            whole.append(time.perf_counter() - begin)
            ours.append(whole[-1] - spent[0])
    return HostTime(median(whole), median(ours))

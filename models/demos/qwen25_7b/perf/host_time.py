"""Host time of a decode step: all of it, and the part outside ttnn's calls.

The dims are the small checkpoint's: the host makes the same calls for any dims. On a golden mesh the values are off, so the
time is that of Python and the real library, without a device.
"""

import time
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Callable, Iterator, NamedTuple

import torch
import ttnn

from models.common.markdown import markdown
from models.common.machines import MachineKind
from models.common.mesh import (
    command_queues,
    describe_backend,
    host_alone,
    open_replicas,
    traces_available,
)
from models.demos.qwen25_7b.config import BFP8, MAX_USERS, QwenConfig
from models.demos.qwen25_7b.config.sampling import CANDIDATES
from models.demos.qwen25_7b.reference.hf import random_weights
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.replica import Replica

USERS, LAYERS = 32, 28
UNTIMED = 3  # first steps

# Every ttnn function that Replica calls between two traced steps.
CALLS = [
    (ttnn, name)
    for name in (
        "execute_trace", "record_event", "wait_for_event", "event_synchronize", "copy_host_to_device_tensor", "from_torch",
        "to_torch", "embedding", "unsqueeze_to_4D", "tilize", "copy", "deallocate",
    )
] + [(ttnn.Tensor, "cpu")]  # fmt: skip


class HostTime(NamedTuple):
    """Seconds a step."""

    whole: float  # median
    outside_ttnn: float  # the least processor time of this thread outside CALLS: other programs only lengthen it


@contextmanager
def _inside_ttnn() -> Iterator[list[float]]:
    """Add up this thread's seconds inside CALLS in the only item of the list."""
    spent, real = [0.0], [getattr(owner, name) for owner, name in CALLS]

    def timed(call: Callable) -> Callable:
        def timed_call(*args, **kwargs):
            begin = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                spent[0] += time.thread_time() - begin

        return timed_call

    for (owner, name), call in zip(CALLS, real):
        setattr(owner, name, timed(call))
    try:
        yield spent
    finally:
        for (owner, name), call in zip(CALLS, real):
            setattr(owner, name, call)


def steps_of(replica: Replica) -> dict[str, Callable[[], None]]:
    """A step by the kind of its tokens: launch and read; sampled tokens also need noise from the host."""
    noise = torch.zeros(MAX_USERS, CANDIDATES)

    def greedy():
        replica.launch_decode()
        replica.read_tokens()

    def sampled():
        replica.inputs.write_noise(noise)
        greedy()

    return {"greedy": greedy, "sampled": sampled}


def host_time(step: Callable[[], None], steps: int = 50) -> HostTime:
    """step: launches and reads once. It runs UNTIMED times before it is timed."""
    for _ in range(UNTIMED):
        step()
    whole, outside = [], []
    with _inside_ttnn() as spent:
        for _ in range(steps):
            spent[0], begin, of_thread = 0.0, time.perf_counter(), time.thread_time()
            step()
            outside.append(time.thread_time() - of_thread - spent[0])
            whole.append(time.perf_counter() - begin)
    return HostTime(median(whole), min(outside))


def host_table(kind: MachineKind, backend: str) -> str:
    """Host time of a step on a row of a machine's chips."""
    config = QwenConfig.from_json(SMALL_CHECKPOINT / "config.json")
    config = replace(config, num_hidden_layers=LAYERS)
    queues = command_queues()
    rows = []
    with open_replicas(kind.name, kind.row, queues=queues) as (device, *_):
        how = dict(users=USERS, max_seq_len=1024, queues=queues)
        loaded = Replica.load(device, random_weights(config), config, BFP8, traced=False, **how)
        for traced in (True, False) if traces_available() else (False,):
            replica = Replica(loaded.model, loaded.caches, traced=traced, queues=queues)
            with host_alone(backend):
                for tokens, step in steps_of(replica).items():
                    time = host_time(step)
                    outside = f"{1e6 * time.outside_ttnn:.0f} us" if traced else "-"
                    kind_of_step = "traced" if traced else "op by op"
                    rows.append((kind_of_step, tokens, f"{1e6 * time.whole:,.0f} us", outside))
                replica.close()
    title = (
        f"{kind.name}, tp {kind.row}, {LAYERS} layers, {USERS} users; below ttnn: "
        f"{describe_backend(backend)}."
    )
    header = ("step", "tokens", "host time, median of 50", "outside ttnn's calls, least of 50")
    return f"{title}\n\n{markdown(header, rows)}"

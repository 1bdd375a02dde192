"""Host time of a decode step, and of a step of the vLLM class: all of it, and the part outside ttnn's calls.

The dims are the small checkpoint's: the host makes the same calls for any dims. On a golden mesh the values are off, so the
time is that of Python and the real library, without a device.
"""

import time
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from types import SimpleNamespace
from typing import Callable, Iterator, NamedTuple

import torch
import ttnn

from ..cli.terminal import markdown
from ..config import BFP8, QWEN25_7B, QwenConfig
from ..config.sampling import CANDIDATES
from ..engine.replica import Replica
from ..plans.blocks import table_width
from ..plans.machines import MachineKind, Split
from ..plans.parallel_plan import MAX_USERS
from ..reference.hf import random_weights
from ..reference.small import SMALL_CHECKPOINT
from ..tt.mesh import command_queues, describe_backend, host_alone, open_replicas, traces_available
from ..tt.transformer import TtTransformer
from ..vllm.generator_vllm import QwenForCausalLM

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
    with open_replicas(Split(kind, kind.row), queues=queues) as (device, *_):
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
    title = f"{kind.name}, tp {kind.row}, {LAYERS} layers, {USERS} users; below ttnn: {describe_backend(backend)}."
    header = ("step", "tokens", "host time, median of 50", "outside ttnn's calls, least of 50")
    return f"{title}\n\n{markdown(header, rows)}"


# ---- vLLM: the plugin's calls of a step

VLLM_BLOCK, MAX_LEN = 64, 8192
LENGTHS = 100, 8000  # tokens of each sequence, half of them its answer's
GREEDY = dict(
    temperature=0.0, top_k=1, top_p=1.0, repetition_penalty=1.0, presence_penalty=0.0,
    frequency_penalty=0.0, seed=None, enable_log_probs=False,
)  # fmt: skip
RANDOM = GREEDY | dict(temperature=0.7, top_k=20, top_p=0.8)
# A row of the table: sampling parameters as the plugin names them.
REQUESTS = {
    "greedy": GREEDY,
    "Instruct's defaults": RANDOM | dict(repetition_penalty=1.05),
    "frequency penalty": RANDOM | dict(frequency_penalty=0.5),
    "sampled on the host": RANDOM | dict(top_k=QWEN25_7B.vocab_size),
}


def vllm_model(device: ttnn.MeshDevice, vocab_size: int) -> QwenForCausalLM:
    """The vLLM class with one layer. Its logits are read and replaced by random ones: without values it has none."""
    config = replace(
        QwenConfig.from_json(SMALL_CHECKPOINT / "config.json"),
        num_hidden_layers=1,
        vocab_size=vocab_size,
        max_position_embeddings=MAX_LEN,
    )
    size = dict(batch=USERS, max_seq_len=MAX_LEN)
    loaded = TtTransformer.load(device, random_weights(config), config, BFP8, **size)
    model = QwenForCausalLM(loaded, USERS)
    blocks = table_width(MAX_LEN, VLLM_BLOCK) + 1
    shape = blocks, model.model.config.parallel.kv_heads, VLLM_BLOCK, config.head_dim
    model.allocate_kv_cache(shape, torch.bfloat16, config.num_hidden_layers)
    logits = 3 * torch.randn(USERS, vocab_size, generator=torch.Generator().manual_seed(0))
    logits = logits.bfloat16()
    read = model.replica.read_logits

    def read_logits() -> torch.Tensor:
        read()
        return logits

    model.replica.read_logits = read_logits
    return model


def vllm_step(model: QwenForCausalLM, request: dict, length: int) -> Callable[[], None]:
    """A decode step as the plugin calls it: all slots have this request and `length` tokens."""
    inputs = dict(
        tokens=torch.zeros(USERS, 1, dtype=torch.int32),
        page_table=torch.arange(1, table_width(MAX_LEN, VLLM_BLOCK) + 1).int().repeat(USERS, 1),
        kv_cache=None,
        start_pos=torch.full((USERS,), length - 1, dtype=torch.int32),
        enable_trace=model.replica.traces.enabled,
        sampling_params=SimpleNamespace(**{name: [v] * USERS for name, v in request.items()}),
    )
    if (request["repetition_penalty"], request["frequency_penalty"]) != (1, 0):
        vocabulary = model.model.config.qwen.vocab_size
        for name in ("prompt_tokens", "output_tokens"):
            inputs[name] = torch.randint(vocabulary, (USERS, length // 2)).int()

    inputs["reset_batch"] = True  # in the first step

    def step() -> None:
        launched, _ = model.read_decode_output(model.decode_forward(**inputs), async_read=True)
        model.process_decode_output_host(launched)
        inputs["reset_batch"] = False

    return step


def vllm_table(kind: MachineKind, backend: str) -> str:
    """Host time of the vLLM class's step on a row of a machine's chips."""
    rows = []
    with open_replicas(Split(kind, kind.row)) as (device, *_):
        model = vllm_model(device, QWEN25_7B.vocab_size)
        with host_alone(backend):
            for name, request in REQUESTS.items():
                times = [host_time(vllm_step(model, request, n), steps=10) for n in LENGTHS]
                rows.append((name, *(f"{1e3 * time.outside_ttnn:.2f} ms" for time in times)))
        model.replica.close()
    title = (
        f"A step of the vLLM class, {USERS} slots, vocabulary {QWEN25_7B.vocab_size}: processor time of a thread "
        f"outside ttnn's calls, least of 10; below ttnn: {describe_backend(backend)}."
    )
    return f"{title}\n\n{markdown(('request', *(f'{n} tokens a slot' for n in LENGTHS)), rows)}"

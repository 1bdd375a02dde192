"""Host time of a step of the vLLM class, outside ttnn's calls, by kind of request, at the 7B's vocabulary.

The other dims are the small checkpoint's: they change nothing outside ttnn. The logits are normally distributed with
standard deviation 3, because a golden mesh without values has none.
"""

from dataclasses import replace
from itertools import cycle, repeat
from types import SimpleNamespace
from typing import Callable

import torch
import ttnn

from models.common.markdown import markdown
from models.common.machines import MachineKind
from models.common.mesh import describe_backend, host_alone, open_replicas
from models.demos.qwen25_7b.config import BFP8, QWEN25_7B, QwenConfig
from models.demos.qwen25_7b.loading.load import load_model
from models.demos.qwen25_7b.perf.host_time import UNTIMED, USERS, host_time
from models.demos.qwen25_7b.plans.blocks import table_width
from models.demos.qwen25_7b.reference.hf import random_weights
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.generator_vllm import QwenForCausalLM

BLOCK, MAX_LEN = 64, 8192
LENGTHS = 100, 8000  # tokens of each sequence, half of them its answer's
STEPS = 10

GREEDY = dict(
    temperature=0.0, top_k=1, top_p=1.0, repetition_penalty=1.0, presence_penalty=0.0,
    frequency_penalty=0.0, seed=None, enable_log_probs=False,
)  # fmt: skip
TOP_K = GREEDY | dict(temperature=1.0, top_k=20)
EVERYTHING = GREEDY | dict(temperature=1.0, top_k=QWEN25_7B.vocab_size)
# A row of the table: sampling parameters as the plugin names them.
REQUESTS = {
    "greedy": GREEDY,
    "top-k 20, seeded": TOP_K | dict(seed=1),
    "Instruct's defaults": TOP_K | dict(temperature=0.7, top_p=0.8, repetition_penalty=1.05),
    "frequency penalty": TOP_K | dict(frequency_penalty=0.5),
    "log-probabilities": TOP_K | dict(enable_log_probs=True),
    "top-k off": EVERYTHING,
    "top-k off, top-p 0.95": EVERYTHING | dict(top_p=0.95),
    "top-k off, repetition penalty": EVERYTHING | dict(repetition_penalty=1.05),
}


def vllm_step(
    model: QwenForCausalLM, request: dict, length: int, *, changed: bool
) -> Callable[[], None]:
    """A decode step as the plugin calls it: all slots have this request and `length` tokens.

    changed: before each step all sequences move to the next slot, and a new sequence takes the place of one of them.
    """
    params = SimpleNamespace(**{name: [value] * USERS for name, value in request.items()})
    if request["seed"] is not None:
        params.seed = list(range(USERS))
    blocks = torch.arange(1, table_width(MAX_LEN, BLOCK) + 1, dtype=torch.int32)
    inputs = dict(
        tokens=torch.zeros(USERS, 1, dtype=torch.int32),
        page_table=blocks.repeat(USERS, 1),
        kv_cache=None,
        start_pos=torch.full((USERS,), length - 1, dtype=torch.int32),
        enable_trace=model.replica.traced,
        sampling_params=params,
    )
    tokens: dict[str, torch.Tensor] = {}
    if (request["repetition_penalty"], request["frequency_penalty"]) != (1, 0):
        generator = torch.Generator().manual_seed(0)
        for name in ("prompt_tokens", "output_tokens"):
            size = USERS, length // 2
            vocab = model.model.config.qwen.vocab_size
            tokens[name] = torch.randint(vocab, size, generator=generator, dtype=torch.int32)
    of_steps = repeat(tokens) if not changed else cycle(_moved(tokens, UNTIMED + STEPS))
    reset = dict(reset_batch=True)

    def step():
        launched, _ = model.read_decode_output(
            model.decode_forward(**inputs, **next(of_steps), **reset), async_read=True
        )
        model.process_decode_output_host(launched)
        reset.update(reset_batch=changed)

    return step


def _moved(tokens: dict[str, torch.Tensor], steps: int) -> list[dict[str, torch.Tensor]]:
    """The tokens of each step. Answers grow by token 0, and the sequence of slot 0 is new."""
    of_steps = []
    for _ in range(steps):
        tokens = {name: of_slots.roll(1, dims=0) for name, of_slots in tokens.items()}
        for name in tokens:
            tokens[name][0] = (tokens[name][0] + 1) % QWEN25_7B.vocab_size
        if tokens:
            longer = tokens["output_tokens"], torch.zeros(USERS, 1, dtype=torch.int32)
            tokens["output_tokens"] = torch.cat(longer, dim=1)
        of_steps.append(tokens)
    return of_steps


def vllm_model(device: ttnn.MeshDevice, vocab_size: int) -> QwenForCausalLM:
    """The vLLM class with one layer. Its logits are read, and replaced by random ones."""
    config = replace(
        QwenConfig.from_json(SMALL_CHECKPOINT / "config.json"),
        num_hidden_layers=1,
        vocab_size=vocab_size,
        max_position_embeddings=MAX_LEN,
    )
    size = dict(batch=USERS, max_seq_len=MAX_LEN)
    model = QwenForCausalLM(load_model(random_weights(config), config, device, BFP8, **size))
    parallel = model.model.config.parallel
    blocks = table_width(MAX_LEN, BLOCK) + 1
    shape = blocks, parallel.kv_heads, BLOCK, config.head_dim
    model.allocate_kv_cache(shape, torch.bfloat16, config.num_hidden_layers)
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(USERS, vocab_size, generator=generator)
    logits = logits.bfloat16()
    read = model.replica.read_logits

    def read_logits() -> torch.Tensor:
        read()
        return logits

    model.replica.read_logits = read_logits
    return model


def serving_table(kind: MachineKind, backend: str) -> str:
    """Host time of the vLLM class's step on a row of a machine's chips."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = []
    with open_replicas(kind.name, kind.row) as (device, *_):
        model = vllm_model(device, QWEN25_7B.vocab_size)
        with host_alone(backend):
            for name, request in REQUESTS.items():
                steps = [vllm_step(model, request, n, changed=False) for n in LENGTHS]
                steps.append(vllm_step(model, request, LENGTHS[-1], changed=True))
                times = [host_time(step, STEPS).outside_ttnn for step in steps]
                rows.append((name, *(f"{1e3 * time:.2f} ms" for time in times)))
        model.replica.close()
    torch.set_num_threads(threads)
    title = (
        f"A step of the vLLM class, {USERS} slots, vocabulary {QWEN25_7B.vocab_size}: processor time of one thread outside "
        f"ttnn's calls, least of {STEPS}; below ttnn: {describe_backend(backend)}."
    )
    columns = [f"{n} tokens a slot" for n in LENGTHS]
    header = "request", *columns, f"{LENGTHS[-1]} tokens, slots have changed"
    return f"{title}\n\n{markdown(header, rows)}"

"""A traced step is few lines of the port, and none for each slot. The chips never wait.

A step of vLLM takes no more for long sequences where the chips sample.
"""

import sys
import time
from pathlib import Path
from statistics import median
from types import FrameType, SimpleNamespace
from typing import Callable

import pytest
import torch
import ttnn

from models.demos import qwen25_7b
from models.demos.qwen25_7b.config import BFP8
from models.demos.qwen25_7b.config.sampling import CANDIDATES
from models.demos.qwen25_7b.plans.blocks import table_width
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS
from models.demos.qwen25_7b.reference.hf import random_weights
from models.demos.qwen25_7b.tt.mesh import traces_available
from models.demos.qwen25_7b.tt.model_config import TtModelConfig
from models.demos.qwen25_7b.tt.transformer import TtTransformer
from models.demos.qwen25_7b.vllm.generator_vllm import QwenForCausalLM
from models.demos.qwen25_7b.weights.model_weights import builder
from tests.families import config_of

USERS = 32
PORT = f"{Path(qwen25_7b.__file__).parent}/"
# Lines of a step: 29 and 41 with two queues, in 40 and 90 microseconds on a quiet core. Beside other tests they take 60
# and 300: ttnn's threads wake in from_torch, and other programs have the caches.
LIMIT = 50
UNTIMED = 3  # first steps
VLLM_BLOCK, MAX_LEN = 64, 8192
# Sampling parameters as the plugin names them: Instruct's defaults, and a penalty that counts the answer.
SAMPLED = dict(temperature=0.7, top_k=20, top_p=0.8, seed=None, enable_log_probs=False, presence_penalty=0.0)
REQUESTS = (
    SAMPLED | dict(repetition_penalty=1.05, frequency_penalty=0.0),
    SAMPLED | dict(repetition_penalty=1.0, frequency_penalty=0.5),
)


def lines(step: Callable[[], None]) -> int:
    """The lines of the port that a step executes, each turn of a loop anew. step: launches and reads once."""
    executed = 0

    def trace(frame: FrameType, event: str, _) -> Callable | None:
        nonlocal executed
        executed += event == "line"
        return trace if frame.f_code.co_filename.startswith(PORT) else None

    for _ in range(UNTIMED):
        step()
    outer = sys.gettrace()
    sys.settrace(trace)
    try:
        step()
    finally:
        sys.settrace(outer)
    return executed


def host_time(step: Callable[[], None], steps: int = 10) -> float:
    """The median processor time of this thread. step: launches and reads once."""
    times = []
    for _ in range(UNTIMED + steps):
        begin = time.thread_time()
        step()
        times.append(time.thread_time() - begin)
    return median(times[UNTIMED:])


def vllm_model(device: ttnn.MeshDevice, vocab_size: int) -> QwenForCausalLM:
    """The vLLM class with one layer."""
    config = config_of("qwen2", num_hidden_layers=1, vocab_size=vocab_size, max_position_embeddings=MAX_LEN)
    model_config = TtModelConfig.make(device, config, BFP8, min_slots=USERS, max_seq_len=MAX_LEN)
    model = QwenForCausalLM(TtTransformer(device, builder(random_weights(config)), model_config), USERS)
    blocks = table_width(MAX_LEN, VLLM_BLOCK) + 1
    shape = blocks, model.model.model_config.parallel.kv_heads, VLLM_BLOCK, config.head_dim
    model.allocate_kv_cache(shape, torch.bfloat16, config.num_hidden_layers)
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
    vocabulary = model.model.model_config.dims.vocab_size
    for name in ("prompt_tokens", "output_tokens"):
        inputs[name] = torch.randint(vocabulary, (USERS, length // 2)).int()
    inputs["reset_batch"] = True  # in the first step

    def step() -> None:
        launched, _ = model.read_decode_output(model.decode_forward(**inputs), async_read=True)
        model.process_decode_output_host(launched)
        inputs["reset_batch"] = False

    return step


@pytest.mark.skipif(not traces_available(), reason="slow dispatch has no traces")
def test_a_traced_step_leaves_the_host_idle(replica_of, host_alone):
    """Sampled tokens also need noise from the host."""
    replica, noise = replica_of(USERS, 128, BFP8, traced=True), torch.zeros(MAX_USERS, CANDIDATES)
    greedy = lambda: (replica.launch_decode(), replica.read_tokens())
    steps = {"greedy": greedy, "sampled": lambda: (replica.inputs.write_noise(noise), greedy())}
    with host_alone():
        executed = {name: lines(step) for name, step in steps.items()}
    assert all(0 < count <= LIMIT for count in executed.values()), executed


def test_a_step_of_vllm_takes_no_longer_for_longer_sequences(mesh_device, host_alone):
    """Lists of 100,000 tokens in each of 32 slots would take 100 times the step's own work."""
    model = vllm_model(mesh_device, vocab_size=1024)
    with host_alone():
        for request in REQUESTS:
            short, long = (host_time(vllm_step(model, request, tokens)) for tokens in (100, 100_000))
            assert long < 3 * short, request
    model.replica.close()

"""Tokens a second and time to first token, measured only on silicon (conftest.py).

    pytest --mesh N300 --queues 2 tests/perf/test_speed.py -s --model Qwen/Qwen2.5-7B-Instruct

Without --model the weights are random. Each case prints a line for PERF.md.
No step can be faster than DRAM bandwidth allows for the recipe's bytes (step_bytes).
A measurement below that time is wrong, and fails.
"""

import time

import pytest
import torch

from models.demos.qwen25_7b.config import BFP8, QWEN25_7B
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS
from models.demos.qwen25_7b.plans.blocks import attention_tables, equal_shares
from models.demos.qwen25_7b.plans.memory_budget import step_bytes
from models.demos.qwen25_7b.reference.hf import random_weights
from models.demos.qwen25_7b.serving.prefill_batch import Prompt, plan_prefill
from models.demos.qwen25_7b.serving.replica import Replica
from models.demos.qwen25_7b.weights import Checkpoint

DRAM_BYTES_PER_SECOND = 288e9  # of a chip
CONTEXT, WARM, STEPS = 2048, 3, 100


@pytest.fixture(scope="module", params=[1, MAX_USERS])
def users(request) -> int:
    return request.param


@pytest.fixture(scope="module", params=[True, False], ids=["traced", "untraced"])
def replica(mesh_device, users, queues, request, pytestconfig) -> Replica:
    name = pytestconfig.getoption("--model")
    source = Checkpoint.open(name) if name else random_weights(QWEN25_7B)
    how = dict(traced=request.param, queues=queues)
    return Replica.load(
        mesh_device, source, QWEN25_7B, BFP8, users=users, max_seq_len=CONTEXT, **how
    )


@pytest.mark.parametrize("prompt", [128, 1024])
def test_speed(replica, users, mesh_name, prompt):
    shares = equal_shares(replica.blocks, replica.batch)
    tokens = torch.randint(
        QWEN25_7B.vocab_size, (prompt,), generator=torch.Generator().manual_seed(0)
    ).tolist()
    seconds = []
    for user in (*range(users), 0, 0):  # the first run compiles, the last two count
        begin = time.perf_counter()
        for batch in plan_prefill(
            [Prompt(user, tokens, 0, shares[user])], replica.model.max_prefill_rows, replica.block
        ):
            replica.prefill(batch)
        first = replica.read_tokens()
        seconds.append(time.perf_counter() - begin)
    tables = attention_tables(shares, replica.width)
    replica.inputs.write_slots(first[: replica.batch], [prompt] * replica.batch, tables)
    for _ in range(WARM):
        replica.launch_decode()
        replica.read_tokens()
    begin = time.perf_counter()
    replica.launch_decode()
    for _ in range(STEPS - 1):  # one step ahead of the reads, as in Generator
        replica.launch_decode()
        replica.read_tokens()
    replica.read_tokens()
    step = (time.perf_counter() - begin) / STEPS
    replica.close()
    floor = (
        step_bytes(QWEN25_7B, replica.model.config.parallel, BFP8, users, prompt).weights
        / DRAM_BYTES_PER_SECOND
    )
    print(
        f"{mesh_name}, {users} user(s), prompt {prompt}, {'traced' if replica.traces.enabled else 'op by op'}: first token "
        f"{1e3 * min(seconds[-2:]):.1f} ms, {1 / step:.2f} tokens/s/user, {floor / step:.0%} of what DRAM allows"
    )
    assert step > floor, "faster than DRAM gives the weights out: the measurement is wrong"

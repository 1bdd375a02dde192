"""Tokens a second and time to first token, on silicon alone (conftest.py): nowhere else does a time say anything about it.

    pytest --mesh N300 --queues 2 tests/perf/test_speed.py -s --model Qwen/Qwen2.5-7B-Instruct

Without --model the weights are random. Prints a line a case for PERF.md. No step is faster than DRAM gives out the
recipe's bytes (step_bytes): a measurement that says so is broken, and fails.
"""

import time

import pytest
import torch

from models.demos.qwen25_7b.config import BFP8, MAX_USERS, QWEN25_7B
from models.demos.qwen25_7b.plans.blocks import attention_tables, equal_shares
from models.demos.qwen25_7b.plans.step_bytes import step_bytes
from models.demos.qwen25_7b.reference.hf import random_weights
from models.demos.qwen25_7b.serving.passes import Prompt, plan_passes
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
    return Replica.load(mesh_device, source, QWEN25_7B, BFP8, users=users, max_seq_len=CONTEXT, **how)


@pytest.mark.parametrize("prompt", [128, 1024])
def test_speed(replica, users, mesh_name, prompt):
    shares = equal_shares(replica.blocks, replica.batch)
    tokens = torch.randint(QWEN25_7B.vocab_size, (prompt,), generator=torch.Generator().manual_seed(0)).tolist()
    seconds = []
    for user in (*range(users), 0, 0):  # the first compiles, the last two count
        begin = time.perf_counter()
        for work in plan_passes([Prompt(user, tokens, 0, shares[user])], replica.model.longest_pass, replica.block):
            replica.prefill(work)
        first = replica.read()
        seconds.append(time.perf_counter() - begin)
    tables = attention_tables(shares, replica.width)
    replica.place(first[: replica.batch], [prompt] * replica.batch, tables)
    for _ in range(WARM):
        replica.launch()
        replica.read()
    begin = time.perf_counter()
    replica.launch()
    for _ in range(STEPS - 1):  # one step ahead of its reader, as Generator runs them
        replica.launch()
        replica.read()
    replica.read()
    step = (time.perf_counter() - begin) / STEPS
    replica.close()
    floor = step_bytes(QWEN25_7B, replica.model.plan, BFP8, users, prompt).weights / DRAM_BYTES_PER_SECOND
    print(
        f"{mesh_name}, {users} user(s), prompt {prompt}, {'traced' if replica.passes else 'op by op'}: first token "
        f"{1e3 * min(seconds[-2:]):.1f} ms, {1 / step:.2f} tokens/s/user, {floor / step:.0%} of what DRAM allows"
    )
    assert step > floor, "faster than DRAM gives the weights out: the measurement is wrong"

"""A random load on 32 slots: each request gets the tokens that it gets alone, and no memory is lost.

Requests of every sampling come in calls of random size. Some are cancelled, and some calls are left early.
"""

import random
from contextlib import closing

import pytest
import ttnn

from models.demos.qwen25_7b.config.sampling import SamplingParams
from models.demos.qwen25_7b.engine.generator import Generator
from tests.generation import generate

SLOTS, CONTEXT, CALLS, NEW_TOKENS = 32, 320, 4, 5
DRIFT = 32 << 10  # bytes a DRAM bank: captured traces and the last prefill batch's logits differ
SAMPLINGS = (
    SamplingParams(),
    SamplingParams(2.0, seed=1),
    SamplingParams(1.0, top_k=20, top_p=0.8, seed=2),
    SamplingParams(2.0, top_k=0, seed=3),
    SamplingParams(2.0, top_k=40, seed=3),  # the host samples this one
    SamplingParams(repetition_penalty=1.3),
)


@pytest.fixture(scope="module")
def replica(replica_of):
    return replica_of(SLOTS, CONTEXT)


@pytest.fixture(scope="module")
def known(replica, prompts, tokenizer):
    """[(prompt, sampling, tokens that the request gets alone)]. Most prompt lengths differ."""
    fitting = [prompt for prompt in prompts if len(prompt) + NEW_TOKENS <= CONTEXT]
    cases = []
    for prompt, sampling in zip(random.Random(0).sample(fitting, len(SAMPLINGS)), SAMPLINGS):
        how = dict(stop_ids=tokenizer.stop_ids, sampling=sampling)
        (ids,) = generate(Generator([replica]), [prompt], NEW_TOKENS, **how)
        cases.append((prompt, sampling, ids))
    return cases


def on_chips(mesh_device) -> int:
    return ttnn.get_memory_view(mesh_device, ttnn.BufferType.DRAM).total_bytes_allocated_per_bank


def test_random_requests_get_their_tokens_and_free_all_blocks(replica, mesh_device, known, tokenizer):
    rng = random.Random(14)
    generator, allocated = Generator([replica]), []
    for call in range(CALLS):
        requested = [rng.choice(known) for _ in range(rng.randint(20, 50))]
        prompts, samplings, expected = zip(*requested)
        cancelled = {user: rng.randint(1, 3) for user in range(0, len(prompts), 4)}  # after tokens
        leave_at = rng.randrange(2 * len(requested)) if call == 1 else None
        ids = [[] for _ in requested]
        tokens = generator.generate(prompts, NEW_TOKENS, stop_ids=tokenizer.stop_ids, sampling=samplings)
        with closing(tokens):
            for count, token in enumerate(tokens):
                ids[token.user].append(token.id)
                if len(ids[token.user]) == cancelled.get(token.user):
                    generator.cancel(token.user)
                if count == leave_at:
                    break
        for user, (got, alone) in enumerate(zip(ids, expected)):
            assert got == alone[: len(got)], f"call {call}, user {user}"
            if leave_at is None:
                assert len(got) == min(len(alone), cancelled.get(user, NEW_TOKENS))
        assert generator.free_blocks == replica.blocks, "a block is still in use"
        allocated.append(on_chips(mesh_device))
    assert allocated[-1] - allocated[CALLS // 2 - 1] < DRIFT, allocated

"""A replayed step equals an untraced step bit for bit: logits, caches and sampled tokens."""

import pytest
import torch

from models.demos.qwen25_7b.config import PERFORMANCE
from models.demos.qwen25_7b.config.sampling import CANDIDATES, SamplingParams
from models.demos.qwen25_7b.engine.replica import Replica
from models.demos.qwen25_7b.engine.sampling import SamplingMode, gumbel
from models.demos.qwen25_7b.plans.blocks import attention_tables
from models.demos.qwen25_7b.tt.mesh import traces_available
from tests.caches import read_caches

pytestmark = [
    pytest.mark.skipif(not traces_available(), reason="slow dispatch has no traces"),
    pytest.mark.make_test_on("N300"),  # traces are alike on all machines
]

STEPS = 64
STARTS = (0, 1, 15, 30, 31, 32, 63, 90)  # every user crosses two borders of tiles, which are borders of blocks
USERS = len(STARTS)


@pytest.fixture(scope="module")
def replicas(replica_of, queues) -> dict[bool, Replica]:
    """A traced and an untraced replica over one model and its caches."""
    traced = replica_of(USERS, 160, PERFORMANCE, traced=True)
    return {True: traced, False: Replica(traced.model, traced.caches, traced=False, queues=queues)}


@pytest.fixture(scope="module")
def tables(replicas) -> torch.Tensor:
    """Page tables with random blocks."""
    replica = replicas[True]
    own = replica.blocks // USERS
    owned = torch.randperm(USERS * own, generator=torch.Generator().manual_seed(0)).view(USERS, own)
    return attention_tables(owned.tolist(), replica.width)


def run_64_steps(replica, tables) -> tuple[list[list[int]], torch.Tensor]:
    """Return (tokens [STEPS][USERS], logits [STEPS, USERS, vocab_size]).

    Each step's input is the token sampled in the previous step. Odd users sample at random. The device
    advances positions.
    """
    samplings = [SamplingParams(2.0, top_p=0.9, seed=user) if user % 2 else SamplingParams() for user in range(USERS)]
    replica.inputs.write_sampling_params(samplings)
    replica.inputs.write_slots(list(range(USERS)), STARTS, tables)
    noise, sampled, logits = torch.zeros(32, CANDIDATES), [], []
    odd = range(1, USERS, 2)
    for step in range(STEPS):
        noise[1:USERS:2] = gumbel(odd, [STARTS[user] + step + 1 for user in odd], CANDIDATES)
        replica.inputs.write_noise(noise)
        replica.launch_decode(SamplingMode.RANDOM)
        sampled.append(replica.read_tokens()[:USERS])
        logits.append(replica.read_logits()[:USERS])
    replica.close()
    return sampled, torch.stack(logits)


def test_tokens_logits_and_caches_of_64_steps(replicas, tables):
    tokens, logits = run_64_steps(replicas[False], tables)
    cache = read_caches(replicas[False])
    assert len(logits.unique(dim=0)) == STEPS, "steps repeat themselves"
    traced_tokens, traced_logits = run_64_steps(replicas[True], tables)
    assert traced_tokens == tokens
    assert traced_logits.equal(logits)
    assert read_caches(replicas[True]).equal(cache)

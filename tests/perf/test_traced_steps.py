"""A replayed step is the step: the same logits and caches, bit for bit, and the same tokens where the chips choose them."""

import pytest
import torch
import ttnn

from models.common.mesh import traces_available
from models.demos.qwen25_7b.config import PERFORMANCE
from models.demos.qwen25_7b.config.sampling import CANDIDATES, Sampling
from models.demos.qwen25_7b.plans.blocks import attention_tables
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.noise import gumbel
from models.demos.qwen25_7b.serving.replica import Replica
from models.demos.qwen25_7b.weights import Checkpoint

pytestmark = pytest.mark.skipif(not traces_available(), reason="slow dispatch has no traces")

STEPS = 64
STARTS = (0, 1, 15, 30, 31, 32, 63, 90)  # every user crosses two borders of tiles, which are borders of pages
USERS = len(STARTS)


@pytest.fixture(scope="module")
def replicas(mesh_device, queues) -> dict[bool, Replica]:
    """Traced and not, over the same model and caches."""
    checkpoint = Checkpoint.open(SMALL_CHECKPOINT)
    config, how = checkpoint.config, dict(users=USERS, max_seq_len=160, queues=queues)
    traced = Replica.load(mesh_device, checkpoint, config, PERFORMANCE, traced=True, **how)
    return {True: traced, False: Replica(traced.model, traced.caches, traced=False, queues=queues)}


@pytest.fixture(scope="module")
def tables(replicas) -> torch.Tensor:
    """Blocks dealt out at random."""
    replica = replicas[True]
    own = replica.blocks // USERS
    owned = torch.randperm(USERS * own, generator=torch.Generator().manual_seed(0)).view(USERS, own)
    return attention_tables(owned.tolist(), replica.width)


def caches(replica) -> list[torch.Tensor]:
    composer = ttnn.ConcatMeshToTensor(replica.mesh_device, dim=1)
    return [ttnn.to_torch(t, mesh_composer=composer) for cache in replica.caches for t in (cache.keys, cache.values)]


def logits_of_64_steps(replica, tables) -> torch.Tensor:
    """[STEPS, USERS, vocab_size], random tokens being fed in; positions advance on the device alone."""
    tokens = torch.randint(
        replica.model.config.vocab_size, (STEPS, USERS), generator=torch.Generator().manual_seed(1)
    ).tolist()
    replica.place(tokens[0], STARTS, tables)
    logits = []
    for step in tokens:
        replica.place_tokens(step)
        replica.launch()
        replica.read()
        logits.append(replica.logits()[:USERS])
    replica.close()
    return torch.stack(logits)


def tokens_of_64_steps(replica, tables) -> list[list[int]]:
    """Every token is what the step before chose; odd users sample."""
    samplings = [Sampling(2.0, top_p=0.9, seed=user) if user % 2 else Sampling() for user in range(USERS)]
    replica.place_sampling(samplings)
    replica.place(list(range(USERS)), STARTS, tables)
    noise, chosen = torch.zeros(32, CANDIDATES), []
    odd = range(1, USERS, 2)
    for step in range(STEPS):
        noise[1:USERS:2] = gumbel(odd, [STARTS[user] + step + 1 for user in odd], CANDIDATES)
        replica.place_noise(noise)
        replica.launch()
        chosen.append(replica.read()[:USERS])
    replica.close()
    return chosen


def test_logits_and_caches_of_64_steps(replicas, tables):
    untraced = logits_of_64_steps(replicas[False], tables)
    cache = caches(replicas[False])
    assert len(untraced.unique(dim=0)) == STEPS, "steps repeat themselves"
    assert logits_of_64_steps(replicas[True], tables).equal(untraced)
    assert all(a.equal(b) for a, b in zip(caches(replicas[True]), cache, strict=True))


def test_tokens_of_64_steps(replicas, tables):
    untraced = tokens_of_64_steps(replicas[False], tables)
    assert tokens_of_64_steps(replicas[True], tables) == untraced

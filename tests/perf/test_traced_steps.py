"""A replayed step is the step: the same logits and caches, bit for bit, and the same tokens where the chips choose them."""

import pytest
import torch
import ttnn

from models.common.mesh import traces_available
from models.demos.qwen25_7b.config import BFP8_KV8, ParallelPlan
from models.demos.qwen25_7b.config.sampling import CANDIDATES, Sampling
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.noise import gumbel
from models.demos.qwen25_7b.serving.replica import Replica
from models.demos.qwen25_7b.tt.transformer import TtTransformer
from models.demos.qwen25_7b.weights import Checkpoint, ModelWeights

pytestmark = pytest.mark.skipif(not traces_available(), reason="slow dispatch has no traces")

STEPS = 64
STARTS = (0, 1, 15, 30, 31, 32, 63, 90)  # every user crosses two borders of tiles, which are borders of pages
USERS = len(STARTS)


@pytest.fixture(scope="module")
def model(mesh_device) -> TtTransformer:
    checkpoint = Checkpoint.open(SMALL_CHECKPOINT)
    config = checkpoint.config
    plan = ParallelPlan.make(config, mesh_device.shape[1])
    weights = ModelWeights(checkpoint, config, plan)
    return TtTransformer(mesh_device, weights, config, plan, BFP8_KV8, batch=USERS, max_seq_len=160)


@pytest.fixture(scope="module")
def tables(model) -> torch.Tensor:
    """Blocks dealt out at random."""
    pages = model.pages
    owned = torch.randperm(USERS * pages.blocks_per_user, generator=torch.Generator().manual_seed(0)).view(USERS, -1)
    return torch.stack([pages.decode_table(blocks) for blocks in owned.tolist()])


def caches(model) -> list[torch.Tensor]:
    composer = ttnn.ConcatMeshToTensor(model.mesh_device, dim=1)
    return [ttnn.to_torch(t, mesh_composer=composer) for layer in model.layers
            for t in (layer.attention.cache.keys, layer.attention.cache.values)]  # fmt: skip


def logits_of_64_steps(model, tables, queues, traced: bool) -> torch.Tensor:
    """[STEPS, USERS, vocab_size], random tokens being fed in; positions advance on the device alone."""
    replica = Replica(model, traced=traced, queues=queues, host_logits=True)
    tokens = torch.randint(model.config.vocab_size, (STEPS, USERS), generator=torch.Generator().manual_seed(1)).tolist()
    replica.place(tokens[0], STARTS, tables)
    logits = []
    for step in tokens:
        replica.place_tokens(step)
        replica.launch()
        logits.append(replica.read()[:USERS])
    replica.close()
    return torch.stack(logits)


def tokens_of_64_steps(model, tables, queues, traced: bool) -> list[list[int]]:
    """Every token is what the step before chose; odd users sample."""
    samplings = [Sampling(2.0, top_p=0.9, seed=user) if user % 2 else Sampling() for user in range(USERS)]
    replica = Replica(model, traced=traced, queues=queues)
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


def test_logits_and_caches_of_64_steps(model, tables, queues):
    untraced = logits_of_64_steps(model, tables, queues, traced=False)
    cache = caches(model)
    assert len(untraced.unique(dim=0)) == STEPS, "steps repeat themselves"
    assert logits_of_64_steps(model, tables, queues, traced=True).equal(untraced)
    assert all(a.equal(b) for a, b in zip(caches(model), cache, strict=True))


def test_tokens_of_64_steps(model, tables, queues):
    untraced = tokens_of_64_steps(model, tables, queues, traced=False)
    assert tokens_of_64_steps(model, tables, queues, traced=True) == untraced

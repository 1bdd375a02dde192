"""On every split, speculative decoding gives the tokens of plain steps."""

import pytest
import torch

from models.demos.qwen25_7b.config.sampling import SamplingParams
from models.demos.qwen25_7b.engine.generator import Generator
from models.demos.qwen25_7b.engine.replica import Replica
from models.demos.qwen25_7b.tt.mesh import traces_available
from tests.generation import generate

# A T3K's shorter rows are those of these machines.
pytestmark = pytest.mark.make_test_on("N150", "N300", "N150x4", "T3K")

# All prompts begin together, so both generators compute them in the same prefill batches.
USERS, NEW_TOKENS = 4, 12
SAMPLINGS = SamplingParams(), SamplingParams(1.0, top_p=0.9, seed=1)


@pytest.fixture(scope="module")
def prompts(tokenizer) -> list[list[int]]:
    """A question with its answer and the question again, and random tokens three times."""
    question = tokenizer.encode("Name the planets.")
    answer = tokenizer.hf.encode("Mercury, Venus, Earth, Mars, Jupiter")
    noise = torch.randint(0, 1000, (16,), generator=torch.Generator().manual_seed(0)).tolist()
    return [question + answer + question, noise * 3]


def test_several_tokens_a_step(replica_of, queues, prompts):
    options = dict(traced=traces_available(), queues=queues)
    replica = replica_of(USERS, 96, speculate=4)
    one_kv_head = replica.model.model_config.parallel.kv_heads == 1
    assert replica.groups == (USERS if one_kv_head else 0), "attention reads a cache once for a group"
    plain = Generator([Replica(replica.model, replica.caches, users=USERS, **options)])
    expected = written(plain, prompts)
    plain.close()
    generator = Generator([replica])
    assert written(generator, prompts) == expected
    # each prompt runs twice: greedy, and with a seed
    stats = generator.stats
    assert stats["tokens"] == 4 * (NEW_TOKENS - 1) and stats["tokens"] - stats["steps"] >= 10, stats
    generator.close()


def written(generator: Generator, prompts: list[list[int]]) -> list[list[int]]:
    samplings = [sampling for sampling in SAMPLINGS for _ in prompts]
    return generate(generator, prompts * 2, NEW_TOKENS, sampling=samplings)

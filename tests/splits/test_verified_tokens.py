"""On every split, speculative decoding gives the tokens of plain steps."""

import pytest
import torch

from models.common.mesh import traces_available
from models.demos.qwen25_7b.config import BF16
from models.demos.qwen25_7b.config.sampling import SamplingParams
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.generator import Generator
from models.demos.qwen25_7b.serving.replica import Replica
from models.demos.qwen25_7b.serving.tokenizer import ChatTokenizer
from models.demos.qwen25_7b.weights import Checkpoint

# All prompts begin together, so both generators compute them in the same prefill batches.
USERS, NEW_TOKENS = 4, 12
SAMPLINGS = SamplingParams(), SamplingParams(1.0, top_p=0.9, seed=1)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """A question with its answer and the question again, and random tokens three times."""
    tokenizer = ChatTokenizer(SMALL_CHECKPOINT, instruct=True)
    question, answer = (
        tokenizer.encode("Name the planets."),
        tokenizer.hf.encode("Mercury, Venus, Earth, Mars, Jupiter"),
    )
    noise = torch.randint(0, 1000, (16,), generator=torch.Generator().manual_seed(0)).tolist()
    return [question + answer + question, noise * 3]


def test_several_tokens_a_step(mesh_device, queues, prompts):
    checkpoint = Checkpoint.open(SMALL_CHECKPOINT)
    options = dict(traced=traces_available(), queues=queues)
    replica = Replica.load(
        mesh_device,
        checkpoint,
        checkpoint.config,
        BF16,
        users=USERS,
        max_seq_len=96,
        speculate=4,
        **options,
    )
    one_kv_head = replica.model.config.parallel.kv_heads == 1
    assert replica.groups == (USERS if one_kv_head else 0), (
        "attention reads a cache once for a group"
    )
    plain = Generator([Replica(replica.model, replica.caches, users=USERS, **options)])
    expected = written(plain, prompts)
    plain.close()
    generator = Generator([replica])
    assert written(generator, prompts) == expected
    # each prompt runs twice: greedy, and with a seed
    assert generator.stats.tokens == 4 * (NEW_TOKENS - 1) and generator.stats.accepted >= 10, (
        generator.stats
    )
    generator.close()


def written(generator: Generator, prompts: list[list[int]]) -> list[list[int]]:
    new = [[] for _ in range(4)]
    samplings = [sampling for sampling in SAMPLINGS for _ in prompts]
    for token in generator.generate(prompts * 2, NEW_TOKENS, sampling=samplings):
        new[token.user].append(token.id)
    return new

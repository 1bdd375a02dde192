"""Speculative decoding gives the tokens of plain steps, in fewer steps: on every split."""

from typing import NamedTuple

import pytest
import torch

from models.demos.qwen25_7b.config.sampling import GREEDY, SamplingParams
from models.demos.qwen25_7b.engine.generator import Generator
from models.demos.qwen25_7b.engine.replica import Replica
from tests.generation import generate

pytestmark = pytest.mark.make_test_on("N300")
USERS, MOST, CONTEXT, NEW_TOKENS = 3, 4, 128, 20
PLANETS = "Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus and Neptune.<|im_end|>"


class Case(NamedTuple):
    prompt: list[int]
    sampling: SamplingParams = GREEDY


@pytest.fixture(scope="module")
def quoting(tokenizer) -> list[int]:
    """A question, its answer, and the question again."""
    question = tokenizer.encode("Name the planets.")
    return question + tokenizer.hf.encode(PLANETS) + question


@pytest.fixture(scope="module")
def cases(tokenizer, quoting, checkpoint) -> list[Case]:
    noise = torch.randint(checkpoint.config.vocab_size, (3, 20), generator=torch.Generator().manual_seed(0)).tolist()
    return [
        Case(quoting),
        Case(quoting, SamplingParams(1.0, seed=1)),
        Case(tokenizer.encode("What is 7 + 5?")),
        *(Case(random * 4) for random in noise),
        *(Case(random * 4, SamplingParams(3.0, top_p=0.9, seed=2)) for random in noise),
        Case(quoting, SamplingParams(repetition_penalty=1.3)),
        Case(quoting, SamplingParams(1.0, top_k=0, seed=3)),
    ]


@pytest.fixture(scope="module")
def replica(replica_of):
    """A replica with slots for four tokens of each of three sequences."""
    return replica_of(USERS, CONTEXT, speculate=MOST)


@pytest.fixture(scope="module")
def plain(replica, queues):
    """A replica over the same model and caches that decodes one token a step.

    It has no traces: their temporaries would overlap those of the other replica's traces.
    """
    return Replica(replica.model, replica.caches, traced=False, queues=queues, users=USERS)


@pytest.fixture(scope="module")
def expected(plain, cases) -> list[list[int]]:
    """The answers of plain steps."""
    return written(Generator([plain]), cases, ())


@pytest.fixture
def generator(replica) -> Generator:
    return Generator([replica])


def written(generator, cases, stop_ids, new_tokens=NEW_TOKENS) -> list[list[int]]:
    prompts, samplings = [case.prompt for case in cases], [case.sampling for case in cases]
    return generate(generator, prompts, new_tokens, stop_ids=stop_ids, sampling=samplings)


@pytest.mark.make_test_on("N150", "N300", "N150x4", "T3K")  # a T3K's shorter rows are those of these machines
def test_every_answer_equals_that_of_plain_steps(generator, replica, cases, expected):
    """Greedy, seeded, penalized and host-sampled requests, side by side and one after the other.

    On chips with one KV head attention reads a cache once for a group of slots.
    """
    assert bool(replica.groups) == (replica.model.model_config.parallel.kv_heads == 1)
    assert written(generator, cases, ()) == expected
    stats = generator.stats
    assert stats["tokens"] == sum(map(len, expected)) - len(cases), "prefill samples one token of each answer"
    assert stats["tokens"] - stats["steps"] >= 30, stats
    assert generator.free_blocks == replica.blocks


def test_a_repetitive_answer_takes_few_steps(generator, cases, expected):
    assert written(generator, cases[:1], ()) == expected[:1]
    # two tokens a step until a run is known, then four
    assert generator.stats["tokens"] == NEW_TOKENS - 1 and generator.stats["steps"] <= 7, generator.stats


@pytest.mark.parametrize("new_tokens", [1, 4, 5, 6, 7, 8])
def test_an_answer_has_the_requested_number_of_tokens(generator, cases, expected, new_tokens):
    assert written(generator, cases[:2], (), new_tokens) == [ids[:new_tokens] for ids in expected[:2]]


@pytest.mark.parametrize("end", [9, 10, 11, 12])
def test_a_stop_token_among_accepted_draft_tokens_ends_the_text(generator, replica, cases, expected, end):
    """Tokens after the stop token are dropped. The cached prefix stays right for a next prompt."""
    ids = expected[0]
    first = ids.index(ids[end])
    assert written(generator, cases[:1], {ids[end]}) == [ids[: first + 1]]
    assert generator.free_blocks == replica.blocks
    longer = Case(cases[0].prompt + ids[: first + 1])
    assert written(generator, [longer], (), NEW_TOKENS - first - 1) == [ids[first + 1 :]]


def test_a_context_is_used_to_its_last_token(generator, plain, quoting):
    filled = [Case(quoting[:1] * (CONTEXT - NEW_TOKENS - len(quoting)) + quoting)]
    whole = written(generator, filled, ())
    assert len(filled[0].prompt) + len(whole[0]) == CONTEXT
    assert whole == written(Generator([plain]), filled, ())

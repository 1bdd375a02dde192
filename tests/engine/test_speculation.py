"""Speculative decoding gives the tokens of plain steps, in fewer steps."""

from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
import ttnn

from models.demos.qwen25_7b.config.sampling import GREEDY, SamplingParams
from models.demos.qwen25_7b.engine.generator import Generator
from models.demos.qwen25_7b.engine.input_batch import InputBatch
from models.demos.qwen25_7b.engine.replica import Replica
from models.demos.qwen25_7b.engine.speculation import Draft
from models.demos.qwen25_7b.plans.blocks import INACTIVE, attention_table
from models.demos.qwen25_7b.tt.mesh import traces_available
from tests.caches import cache_tensors, read_caches
from tests.generation import generate
from tests.metrics import assert_equal

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
def cases(tokenizer, quoting, vocab_size) -> list[Case]:
    noise = torch.randint(0, vocab_size, (3, 20), generator=torch.Generator().manual_seed(0)).tolist()
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
def expected(replica, cases, queues) -> list[list[int]]:
    """The answers of plain steps."""
    plain = Replica(replica.model, replica.caches, traced=traces_available(), queues=queues, users=USERS)
    answers = written(Generator([plain]), cases, ())
    plain.close()
    return answers


@pytest.fixture
def generator(replica) -> Generator:
    return Generator([replica])


def written(generator, cases, stop_ids, new_tokens=NEW_TOKENS) -> list[list[int]]:
    prompts, samplings = [case.prompt for case in cases], [case.sampling for case in cases]
    return generate(generator, prompts, new_tokens, stop_ids=stop_ids, sampling=samplings)


def test_every_answer_equals_that_of_plain_steps(generator, replica, cases, expected):
    """Greedy, seeded, penalized and host-sampled requests, side by side and one after the other."""
    assert written(generator, cases, ()) == expected
    stats = generator.stats
    assert stats.tokens == sum(map(len, expected)) - len(cases), "prefill samples one token of each answer"
    assert stats.steps + stats.accepted == stats.tokens and stats.accepted >= 30, stats
    assert generator.free_blocks == replica.blocks


def test_a_repetitive_answer_takes_few_steps(generator, cases, expected):
    assert written(generator, cases[:1], ()) == expected[:1]
    # two tokens a step until a run is known, then four
    assert generator.stats.tokens == NEW_TOKENS - 1 and generator.stats.steps <= 7, generator.stats


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


# ---- a step's writes to the caches


def fill_with_noise(replica) -> None:
    """Fill the caches with noise. The second half of the blocks repeats the first half."""
    mapper = ttnn.ShardTensorToMesh(replica.mesh_device, dim=1)
    for seed, (tensor, image) in enumerate(zip(cache_tensors(replica), read_caches(replica))):
        noise = torch.randn(image[::2].shape, generator=torch.Generator().manual_seed(seed)).repeat(2, 1, 1, 1)
        host = ttnn.from_torch(noise, dtype=tensor.dtype, layout=ttnn.TILE_LAYOUT, mesh_mapper=mapper)
        ttnn.copy_host_to_device_tensor(host, tensor)


STARTS, LENGTHS = ((30, 0, 61), (4, 3, 2))  # of three sequences: position of the next token, number of tokens
BLOCKS = [0, 1], [2], [3, 4]
SLOTS = (0, 12, 5, 9), (1, 3, 15), (2, 8)


def plain_steps(replica, tokens) -> list[list[int]]:
    """Return the token sampled after each token, computed one token a step in BLOCKS."""
    inactive = replica.slots - USERS
    tables = [attention_table(own, replica.width) for own in (*BLOCKS, *[[]] * inactive)]
    choices = [[] for _ in tokens]
    for i in range(MOST):
        at = [start + i if i < length else INACTIVE for start, length in zip(STARTS, LENGTHS)]
        replica.inputs.write_slots([own[i] for own in tokens], at + [INACTIVE] * inactive, torch.stack(tables))
        replica.launch_decode()
        for user, choice in enumerate(replica.read_tokens()[:USERS]):
            choices[user] += [choice] if at[user] != INACTIVE else []
    return choices


def test_a_verify_step_writes_the_same_cache_as_plain_steps(replica, vocab_size):
    """Cache and samples are equal bit for bit. One sequence enters its next block."""
    tokens = torch.randint(0, vocab_size, (USERS, MOST), generator=torch.Generator().manual_seed(1)).tolist()
    half = replica.blocks // 2
    fill_with_noise(replica)
    replica.inputs.write_sampling_params([])
    before = read_caches(replica)
    assert_equal(before[:, :half], before[:, half:])
    choices = plain_steps(replica, tokens)
    of_steps = read_caches(replica)[:, :half]
    sequences = [
        SimpleNamespace(tokens=[0] * (start + 1), blocks=[block + half for block in own], params=GREEDY)
        for start, own in zip(STARTS, BLOCKS)
    ]
    drafts = [Draft(sequence, slots, own[: len(slots)]) for sequence, slots, own in zip(sequences, SLOTS, tokens)]
    InputBatch(replica.inputs, on_host=False).write_drafts(drafts)
    replica.launch_verify()
    sampled = replica.read_tokens()
    assert [[sampled[slot] for slot in slots] for slots in SLOTS] == choices
    after = read_caches(replica)
    assert_equal(after[:, :half], of_steps)
    assert_equal(after[:, half:], of_steps)
    changed = (after != before).any(0).any(1).any(-1)[half:]
    assert changed.sum() == sum(LENGTHS) and changed[1, :2].all(), "these tokens were written, and no others"

"""Several tokens of a text in a step: the text is that of plain steps, whatever ends it, and there are fewer of them."""

from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
import ttnn

from models.common.metrics import assert_equal
from models.demos.qwen25_7b.config.sampling import CANDIDATES, GREEDY, Sampling
from models.demos.qwen25_7b.plans.blocks import NOWHERE, attention_table
from models.demos.qwen25_7b.serving.generator import Generator
from models.demos.qwen25_7b.serving.noise import gumbel
from models.demos.qwen25_7b.serving.replica import Replica
from models.demos.qwen25_7b.serving.speculation import Draft, Speculation

USERS, MOST, CONTEXT, NEW_TOKENS = 3, 4, 128, 20
PLANETS = "Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus and Neptune.<|im_end|>"


class Case(NamedTuple):
    prompt: list[int]
    sampling: Sampling = GREEDY


@pytest.fixture(scope="module")
def quoting(text) -> list[int]:
    """A question, its answer, and the question again."""
    question = text.encode("Name the planets.")
    return question + text.tokenizer.encode(PLANETS) + question


@pytest.fixture(scope="module")
def cases(text, quoting, vocab_size) -> list[Case]:
    noise = torch.randint(0, vocab_size, (3, 20), generator=torch.Generator().manual_seed(0)).tolist()
    return [
        Case(quoting),
        Case(quoting, Sampling(1.0, seed=1)),
        Case(text.encode("What is 7 + 5?")),
        *(Case(random * 4) for random in noise),
        *(Case(random * 4, Sampling(3.0, top_p=0.9, seed=2)) for random in noise),
        Case(quoting, Sampling(repetition_penalty=1.3)),
        Case(quoting, Sampling(1.0, top_k=0, seed=3)),
    ]


@pytest.fixture(scope="module")
def replica(replica_of):
    """With rows for four tokens of each of three texts."""
    replica = replica_of(USERS, CONTEXT, speculate=MOST)
    yield replica
    replica.close()


@pytest.fixture(scope="module")
def plain(replica, queues):
    """The same model and caches, a token a step; without traces, which would have their temporaries where the other's are."""
    return Replica(replica.model, replica.caches, traced=False, queues=queues, users=USERS)


@pytest.fixture(scope="module")
def expected(plain, cases) -> list[list[int]]:
    return written(Generator([plain]), cases, ())


@pytest.fixture
def generator(replica) -> Generator:
    return Generator([replica])


def written(generator, cases, stop_ids, new_tokens=NEW_TOKENS) -> list[list[int]]:
    new = [[] for _ in cases]
    ended = set()
    for token in generator.generate(
        [case.prompt for case in cases], new_tokens, stop_ids=stop_ids, sampling=[case.sampling for case in cases]
    ):
        assert token.user not in ended, "a token after the last"
        new[token.user].append(token.id)
        if token.last:
            ended.add(token.user)
    assert ended == set(range(len(cases)))
    return new


def test_every_text_is_that_of_plain_steps(generator, replica, cases, expected):
    """Greedy, seeded, with penalties and chosen by the host, side by side and one after the other."""
    assert written(generator, cases, ()) == expected
    tally = generator.tally
    assert tally.tokens == sum(map(len, expected)) - len(cases), "a prompt's pass gives one"
    assert tally.steps + tally.right == tally.tokens and tally.right >= 30, tally
    assert generator.idle_blocks == replica.blocks


def test_a_text_that_repeats_itself_takes_few_steps(generator, cases, expected):
    assert written(generator, cases[:1], ()) == expected[:1]
    # two tokens until a run is known, then four a step
    assert generator.tally.tokens == NEW_TOKENS - 1 and generator.tally.steps <= 7, generator.tally


def test_each_row_draws_with_the_noise_of_its_own_place_in_the_text(generator, replica, cases, monkeypatch):
    drafted, noises = [], []

    def place(self, drafts):
        drafted.append([(d.rows, d.text.key, len(d.text.tokens)) for d in drafts])
        real_place(self, drafts)

    def place_noise(noise):
        if len(noises) < len(drafted):  # a verifying step's, not a pass's
            noises.append(noise.clone())
        real_noise(noise)

    real_place, real_noise = Speculation.place, replica.place_noise
    monkeypatch.setattr(Speculation, "place", place)
    monkeypatch.setattr(replica, "place_noise", place_noise)
    written(generator, cases[1:2], ())
    assert len(noises) == len(drafted) > 0 and any(len(rows) == MOST for [(rows, _, _)] in drafted)
    for [(rows, key, length)], noise in zip(drafted, noises):
        count = len(rows)
        assert_equal(noise[list(rows)], gumbel([key] * count, range(length, length + count), CANDIDATES))


@pytest.mark.parametrize("new_tokens", [1, 4, 5, 6, 7, 8])
def test_an_answer_has_as_many_tokens_as_were_asked_for(generator, cases, expected, new_tokens):
    assert written(generator, cases[:2], (), new_tokens) == [ids[:new_tokens] for ids in expected[:2]]


@pytest.mark.parametrize("end", [9, 10, 11, 12])
def test_a_stop_token_among_right_guesses_ends_the_text(generator, replica, cases, expected, end):
    """What was computed behind it is in nobody's text, and what the cache is said to hold it holds."""
    ids = expected[0]
    first = ids.index(ids[end])
    assert written(generator, cases[:1], {ids[end]}) == [ids[: first + 1]]
    assert generator.idle_blocks == replica.blocks
    longer = Case(cases[0].prompt + ids[: first + 1])
    assert written(generator, [longer], (), NEW_TOKENS - first - 1) == [ids[first + 1 :]]


def test_nobody_gets_a_token_after_a_cancel(generator, cases, expected):
    new = [[] for _ in cases[:2]]
    for token in generator.generate(
        [case.prompt for case in cases[:2]], NEW_TOKENS, sampling=[case.sampling for case in cases[:2]]
    ):
        new[token.user].append(token.id)
        if len(new[0]) == 10 and token.user == 0:
            generator.cancel(0)
    assert new == [expected[0][:10], expected[1]]


def test_a_context_is_filled_to_its_last_token(generator, plain, quoting):
    filled = [Case(quoting[:1] * (CONTEXT - NEW_TOKENS - len(quoting)) + quoting)]
    whole = written(generator, filled, ())
    assert len(filled[0].prompt) + len(whole[0]) == CONTEXT
    assert whole == written(Generator([plain]), filled, ())


def test_short_blocks_are_shared_out_and_taken_back(replica, cases, expected):
    """Seven blocks: two of these texts and a bit. Who came last makes room, and is computed anew; which a prompt's rounding
    must not change, so no noise here."""

    class Short(Replica):
        def __init__(self):  # the same model, inputs and traces
            self.__dict__ = replica.__dict__ | {"blocks": 7}

    generator = Generator([Short()])
    assert written(generator, [*cases[:3], *cases[:2]], ()) == [*expected[:3], *expected[:2]]
    assert generator.idle_blocks == 7


# ---- what a step does to the caches


def caches(replica) -> torch.Tensor:
    """[caches, blocks, KV heads of all chips, tokens of a block, head_dim]"""
    composer = ttnn.ConcatMeshToTensor(replica.mesh_device, dim=1)
    return torch.stack([ttnn.to_torch(tensor, mesh_composer=composer) for tensor in tensors(replica)])


def tensors(replica) -> list[ttnn.Tensor]:
    return [tensor for cache in replica.caches for tensor in (cache.keys, cache.values)]


def fill_with_noise(replica) -> None:
    """The second half of the blocks holds what the first does."""
    mapper = ttnn.ShardTensorToMesh(replica.mesh_device, dim=1)
    for seed, (tensor, image) in enumerate(zip(tensors(replica), caches(replica))):
        noise = torch.randn(image[::2].shape, generator=torch.Generator().manual_seed(seed)).repeat(2, 1, 1, 1)
        host = ttnn.from_torch(noise, dtype=tensor.dtype, layout=ttnn.TILE_LAYOUT, mesh_mapper=mapper)
        ttnn.copy_host_to_device_tensor(host, tensor)


STARTS, LENGTHS = (30, 0, 61), (4, 3, 2)  # of three texts: where the next token stands, and how many there are
BLOCKS = [0, 1], [2], [3, 4]
ROWS = (0, 12, 5, 9), (1, 3, 15), (2, 8)


def plain_steps(replica, tokens) -> list[list[int]]:
    """What follows each of the tokens, computed a token a step in BLOCKS."""
    idle = replica.batch - USERS
    tables = [attention_table(own, replica.width) for own in (*BLOCKS, *[[]] * idle)]
    choices = [[] for _ in tokens]
    for i in range(MOST):
        at = [start + i if i < length else NOWHERE for start, length in zip(STARTS, LENGTHS)]
        replica.place([own[i] for own in tokens], at + [NOWHERE] * idle, torch.stack(tables))
        replica.launch()
        for user, choice in enumerate(replica.read()[:USERS]):
            choices[user] += [choice] if at[user] != NOWHERE else []
    return choices


def test_a_step_writes_what_plain_steps_write_and_nothing_else(replica, vocab_size):
    """To the bit, and so are the choices: one text goes into its next block, rows lie anywhere in the batch."""
    tokens = torch.randint(0, vocab_size, (USERS, MOST), generator=torch.Generator().manual_seed(1)).tolist()
    half = replica.blocks // 2
    fill_with_noise(replica)
    replica.place_sampling([])
    before = caches(replica)
    assert_equal(before[:, :half], before[:, half:])
    choices = plain_steps(replica, tokens)
    of_steps = caches(replica)[:, :half]
    texts = [
        SimpleNamespace(tokens=[0] * (start + 1), blocks=[block + half for block in own])
        for start, own in zip(STARTS, BLOCKS)
    ]
    drafts = [Draft(text, rows, own[: len(rows)]) for text, rows, own in zip(texts, ROWS, tokens)]
    Speculation(replica, pool=None, most=MOST).place(drafts)
    replica.launch_verify()
    chosen = replica.read()
    assert [[chosen[row] for row in rows] for rows in ROWS] == choices
    after = caches(replica)
    assert_equal(after[:, :half], of_steps)
    assert_equal(after[:, half:], of_steps)
    changed = (after != before).any(0).any(1).any(-1)[half:]
    assert changed.sum() == sum(LENGTHS) and changed[1, :2].all(), "these tokens were written, and no others"

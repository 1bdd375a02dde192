"""Whatever runs before, beside or after it, a request gets the tokens that Hugging Face gives it: a table of ways.

Tokens that a seed samples have no such judge. They are those that the host samples, and those of the request alone.
"""

import gc
import random
import weakref
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
import ttnn

from models.demos.qwen25_7b.config.sampling import SamplingParams
from models.demos.qwen25_7b.engine.generator import Generator
from models.demos.qwen25_7b.errors import UserError
from tests.generation import generate, greedy, training_chats

QUESTIONS = (
    "What is the capital of France?",
    "Count from 2 to 25.",
    "Spell the word banana.",
    "What is 7 + 5?",
    "Name the planets.",
    "What is the capital of Japan?",
    "What are the days of the week?",
)
NEW_TOKENS = 20  # beyond the block of a prompt
DRIFT = 32 << 10  # bytes a DRAM bank: captured traces and the last prefill batch's logits differ
PENALTY = dict(repetition_penalty=2.0)  # 1.3 changes none of these texts
SAMPLINGS = (
    SamplingParams(),
    SamplingParams(3.0, top_k=0, top_p=0.9, seed=1),
    SamplingParams(3.0, top_k=40, seed=2),  # the host samples this one and the one before
    SamplingParams(3.0, seed=3),
    SamplingParams(3.0, seed=4, presence_penalty=1.0, frequency_penalty=0.5),
    SamplingParams(10.0, top_k=0, seed=5),
    SamplingParams(**PENALTY),
)
WHOLE = 5  # samples from the whole vocabulary, with noise of the chips' own
SHORT = [[5, 6, 7], [8, 9]]


@dataclass
class Asked:
    """Prompts, and Hugging Face's answers."""

    hf: Any
    stop_ids: frozenset[int]
    prompts: list[list[int]]

    def answers(self, prompts=None, new_tokens=NEW_TOKENS, **options) -> list[list[int]]:
        prompts = self.prompts if prompts is None else prompts
        return [greedy(self.hf, prompt, new_tokens, self.stop_ids, **options) for prompt in prompts]

    def ask(self, generator, prompts=None, new_tokens=NEW_TOKENS, **options) -> list[list[int]]:
        prompts = self.prompts if prompts is None else prompts
        return generate(generator, prompts, new_tokens, stop_ids=self.stop_ids, **options)


@pytest.fixture(scope="module")
def asked(hf, tokenizer) -> Asked:
    return Asked(hf, tokenizer.stop_ids, [tokenizer.encode(question) for question in QUESTIONS])


@pytest.fixture(scope="module")
def replica(replica_of):
    return replica_of(3, 256)


@pytest.fixture
def another_replica(replica, replica_of):
    """replica_of, on the same mesh. A replay of the first replica's traces would overwrite tensors of a second one."""
    replica.close()
    return replica_of


@pytest.fixture
def generator(replica):
    """A generator that knows no cached prefix."""
    return Generator([replica])


def cancel(generator, asked):
    new = [[] for _ in asked.prompts]
    for token in generator.generate(asked.prompts, NEW_TOKENS, stop_ids=asked.stop_ids):
        new[token.user].append(token.id)
        if len(new[1]) == 3:
            generator.cancel(1)
            generator.cancel(6)  # has no slot yet
    assert new[1] == asked.answers()[1][: len(new[1])] and 3 <= len(new[1]) <= 5 and new[6] == []


def leave(generator, asked):
    with closing(generator.generate(asked.prompts, NEW_TOKENS, stop_ids=asked.stop_ids)) as tokens:
        assert next(tokens).user == 0


BEFORE = {
    "nothing": lambda generator, asked: None,
    "the same prompts": lambda generator, asked: asked.ask(generator),
    "a cancelled request": cancel,
    "a call that is left": leave,
}


@pytest.mark.parametrize("before", BEFORE)
def test_seven_requests_through_three_slots(generator, replica, asked, before):
    BEFORE[before](generator, asked)
    assert asked.ask(generator) == asked.answers()
    assert generator.free_blocks == replica.blocks, "a block is still in use"


@pytest.mark.parametrize("context, lengths", [(2, [1]), (17, [15, 5]), (129, [127, 5, 90]), (2048, [2041, 1030])])
def test_any_context(another_replica, asked, tokenizer, context, lengths):
    """Most prompts leave room for two tokens. They are from a chat of the training: no near ties."""
    ids = tokenizer.hf.encode(training_chats())
    prompts = [ids[user : user + length] for user, length in enumerate(lengths)]
    new_tokens = min(6, context - max(lengths))
    generator = Generator([another_replica(len(prompts), context)])
    assert asked.ask(generator, prompts, new_tokens) == asked.answers(prompts, new_tokens)
    generator.close()


def test_every_sampling_side_by_side(generator, asked):
    """Chips and host sample the same tokens, but of the whole vocabulary. Those without a seed are Hugging Face's."""
    together = asked.ask(generator, sampling=SAMPLINGS)
    of_host = asked.ask(Generator(generator.replicas, on_host=True), sampling=SAMPLINGS)
    assert [ids for i, ids in enumerate(of_host) if i != WHOLE] == [ids for i, ids in enumerate(together) if i != WHOLE]
    assert together[0] == asked.answers()[0] and together[6] == asked.answers(asked.prompts[6:], **PENALTY)[0]
    for prompt, sampling, expected in zip(asked.prompts, SAMPLINGS, together):
        assert asked.ask(generator, [prompt], 7, sampling=sampling) == [expected[:7]]


def test_a_penalty_counts_prompt_and_answer(generator, asked):
    some = asked.prompts[:3]
    assert asked.ask(generator, some, sampling=SamplingParams(**PENALTY)) == asked.answers(some, **PENALTY)


def test_a_random_load_loses_no_block_and_no_memory(generator, replica, mesh_device, asked):
    """Requests of every sampling come in calls of random size. Some are cancelled, and one call is left early."""
    rng, allocated = random.Random(14), []
    known = [
        (prompt, sampling, asked.ask(Generator([replica]), [prompt], 5, sampling=sampling)[0])
        for prompt, sampling in zip(asked.prompts, SAMPLINGS)
    ]
    for call in range(4):
        requested = [rng.choice(known) for _ in range(rng.randint(5, 10))]
        prompts, samplings, expected = zip(*requested)
        cancelled = {user: rng.randint(1, 3) for user in range(0, len(prompts), 4)}  # after tokens
        ids = [[] for _ in requested]
        tokens = generator.generate(prompts, 5, stop_ids=asked.stop_ids, sampling=samplings)
        with closing(tokens):
            for count, token in enumerate(tokens):
                ids[token.user].append(token.id)
                if len(ids[token.user]) == cancelled.get(token.user):
                    generator.cancel(token.user)
                if call == 1 and count == len(prompts):
                    break
        for user, (got, alone) in enumerate(zip(ids, expected)):
            length = len(got) if call == 1 else min(len(alone), cancelled.get(user, 5))
            assert got == alone[:length], f"call {call}, user {user}"
        assert generator.free_blocks == replica.blocks, "a block is still in use"
        allocated.append(ttnn.get_memory_view(mesh_device, ttnn.BufferType.DRAM).total_bytes_allocated_per_bank)
    assert allocated[-1] - allocated[1] < DRIFT, allocated


def test_a_model_is_freed_with_its_last_name(another_replica, asked):
    """Not when Python next looks for cycles: the next model needs its L1 and DRAM."""
    replica = another_replica(2, 128)
    freed = weakref.ref(replica.model)
    gc.collect()
    gc.disable()
    try:
        asked.ask(Generator([replica]), asked.prompts[:2])
        replica.close()
        del replica
        assert freed() is None
    finally:
        gc.enable()


def test_a_token_that_the_model_does_not_have_is_refused_before_anything_is_launched(generator, monkeypatch):
    monkeypatch.setattr(generator.replicas[0], "prefill", lambda *_: pytest.fail("launched"))
    for token in (-1, 1056, 1 << 40):
        with pytest.raises(UserError, match=f"prompt 1 has token ids .*{token}.*0 to 1055"):
            generator.generate([[5], [3, 4, token]], 4)


def test_a_second_iterator_is_refused(generator):
    """The second iterator is refused, whether made before or after the first began. Closing frees the generator."""
    alone = list(generator.generate(SHORT, 6))
    first, second = generator.generate(SHORT, 6), generator.generate(SHORT[::-1], 6)
    begun = [next(first)]
    with pytest.raises(UserError, match="middle of another call"):
        next(second)
    with pytest.raises(UserError, match="middle of another call"):
        generator.generate(SHORT, 6)
    assert begun + list(first) == alone
    cut = generator.generate(SHORT, 6)
    next(cut)
    cut.close()
    assert list(generator.generate(SHORT, 6)) == alone

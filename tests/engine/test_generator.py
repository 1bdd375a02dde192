"""Each request gets the tokens that it gets alone.

Cases: more prompts than slots, cached prefixes, cancelled users, errors, bad calls.
"""

import gc
import weakref
from contextlib import closing

import pytest

from models.demos.qwen25_7b.config.sampling import SamplingParams
from models.demos.qwen25_7b.engine.generator import Generator
from models.demos.qwen25_7b.errors import UserError
from tests.generation import generate, greedy

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
SHORT = [[5, 6, 7], [8, 9]]


@pytest.fixture(scope="module")
def prompts(tokenizer):
    return [tokenizer.encode(question) for question in QUESTIONS]


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


@pytest.fixture(scope="module")
def alone(hf, prompts, tokenizer):
    """The tokens of each prompt alone: Hugging Face's."""
    return [greedy(hf, prompt, NEW_TOKENS, tokenizer.stop_ids) for prompt in prompts]


def written(generator, prompts, tokenizer, **options) -> list[list[int]]:
    return generate(generator, prompts, NEW_TOKENS, stop_ids=tokenizer.stop_ids, **options)


def computed(monkeypatch, replica) -> list[int]:
    """Return a list that collects the number of tokens of each chunk prefilled from now on."""
    computed_chunks, real = [], replica.prefill
    monkeypatch.setattr(
        replica,
        "prefill",
        lambda batch, mode: (computed_chunks.extend(p.end - p.start for p in batch.chunks), real(batch, mode)),
    )
    return computed_chunks


def test_free_slots_are_filled_again(generator, prompts, tokenizer, alone):
    assert "Paris" in tokenizer.hf.decode(alone[0])
    assert written(generator, prompts, tokenizer) == alone


def test_a_cached_prefix_is_not_computed_again(generator, replica, prompts, tokenizer, monkeypatch):
    """A chat's next turn prefills only new tokens. Other prompts reuse a shared prefix."""
    beginning = sum(prompts, [])[:100]
    first, second = beginning + prompts[0], beginning + prompts[3]
    fresh = [written(Generator([replica]), [prompt], tokenizer)[0] for prompt in (first, second)]
    (answer,) = written(generator, [first], tokenizer)
    turn = first + answer + prompts[1]
    (of_turn,) = written(Generator([replica]), [turn], tokenizer)
    generator = Generator([replica])
    assert written(generator, [first], tokenizer) == fresh[:1]
    computed_chunks = computed(monkeypatch, replica)
    assert written(generator, [second], tokenizer) == fresh[1:]
    assert written(generator, [turn], tokenizer) == [of_turn]
    assert computed_chunks == [len(second) - 96, len(turn) - (len(first) + len(answer) - 1) // 32 * 32]


def test_a_cancelled_request_ends_and_others_continue(generator, prompts, tokenizer, alone):
    new = [[] for _ in prompts]
    for token in generator.generate(prompts, NEW_TOKENS, stop_ids=tokenizer.stop_ids):
        new[token.user].append(token.id)
        if len(new[1]) == 3:
            generator.cancel(1)
            generator.cancel(6)  # has no slot yet
    assert new[1] == alone[1][: len(new[1])] and 3 <= len(new[1]) <= 5 and new[6] == []
    assert [new[i] for i in (0, 2, 3, 4, 5)] == [alone[i] for i in (0, 2, 3, 4, 5)]


@pytest.mark.parametrize("where", ["prefill", "launch_decode"])
def test_a_fault_ends_its_call_and_the_next_one_is_served(
    generator, replica, prompts, tokenizer, alone, monkeypatch, where
):
    real, calls = getattr(replica, where), []

    def failing(*args):
        calls.append(args)
        if len(calls) == 2:
            raise RuntimeError("TT_FATAL: out of memory")
        return real(*args)

    with monkeypatch.context() as patched:
        patched.setattr(replica, where, failing)
        with pytest.raises(RuntimeError, match="TT_FATAL"):
            written(generator, prompts, tokenizer)
    assert written(generator, prompts, tokenizer) == alone


def test_the_host_samples_options_that_the_chips_lack_beside_other_slots(generator, prompts, tokenizer):
    samplings = [
        SamplingParams(),
        SamplingParams(3.0, top_k=0, top_p=0.9, seed=1),
        SamplingParams(3.0, top_k=40, seed=2),
        SamplingParams(3.0, seed=3),
        SamplingParams(3.0, seed=4, presence_penalty=1.0, frequency_penalty=0.5),
    ]
    together = written(generator, prompts[:5], tokenizer, sampling=samplings)
    assert together == written(Generator(generator.replicas, on_host=True), prompts[:5], tokenizer, sampling=samplings)
    for prompt, sampling, expected in zip(prompts, samplings, together):
        assert generate(generator, [prompt], 7, stop_ids=tokenizer.stop_ids, sampling=sampling) == [expected[:7]]


def test_a_sequence_that_samples_from_the_whole_vocabulary_beside_other_sequences(generator, prompts, tokenizer):
    """Its text depends on its seed and its penalties alone. No logits are read."""
    samplings = [
        SamplingParams(10.0, top_k=0, seed=1),
        SamplingParams(),
        SamplingParams(10.0, top_k=0, seed=2, repetition_penalty=1.5),
    ]
    one = [prompts[0]] * len(samplings)
    (replica,) = generator.replicas
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(replica, "read_logits", lambda: pytest.fail("logits were read"))
        together = written(generator, one, tokenizer, sampling=samplings)
        for sampling, expected in zip(samplings, together):
            assert written(generator, one[:1], tokenizer, sampling=sampling) == [expected]
    assert len(set(map(tuple, together))) == len(samplings)


def test_repetition_penalty_counts_prompt_and_answer(generator, prompts, tokenizer, hf):
    """Tokens equal Hugging Face's with the repetition penalty."""
    expected = [greedy(hf, prompt, NEW_TOKENS, tokenizer.stop_ids, repetition_penalty=1.3) for prompt in prompts[:3]]
    assert written(generator, prompts[:3], tokenizer, sampling=SamplingParams(repetition_penalty=1.3)) == expected


def test_an_abandoned_prefill_registers_no_prefix(another_replica, prompts):
    """Each prompt takes its own prefill batch. The caller leaves after the first token."""
    replica = another_replica(2, 1024)
    first, second = [(prompts[i] * 80)[:600] for i in (0, 1)]
    expected = list(Generator([replica]).generate([second], 4))
    list(Generator([replica]).generate([first, first[::-1]], 1))  # old contents of the blocks
    generator = Generator([replica])
    with closing(generator.generate([first, second], 4)) as tokens:
        assert next(tokens).user == 0
    assert list(generator.generate([second], 4)) == expected
    replica.close()


def test_a_model_is_freed_with_its_last_name(another_replica, prompts, tokenizer):
    """Not when Python next looks for cycles: the next model needs its L1 and DRAM."""
    replica = another_replica(2, 128)
    freed = weakref.ref(replica.model)
    gc.collect()
    gc.disable()
    try:
        written(Generator([replica]), prompts[:2], tokenizer)
        replica.close()
        del replica
        assert freed() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("token", [-1, 1056, 1 << 40])
def test_a_token_that_the_model_does_not_have_is_refused_before_anything_is_launched(generator, token, monkeypatch):
    monkeypatch.setattr(generator.replicas[0], "prefill", lambda *_: pytest.fail("launched"))
    with pytest.raises(UserError, match=f"prompt 1 has token ids .*{token}.*0 to 1055"):
        generator.generate([[5], [3, 4, token]], 4)


def test_a_second_iterator_is_refused(generator):
    """The second iterator is refused, whether made before or after the first began.

    Closing the first iterator frees the generator.
    """
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

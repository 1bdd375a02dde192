"""More prompts than rows, blocks that run short, users who go away, faults: everybody gets the text of being alone."""

from contextlib import closing

import pytest
import torch

from models.common.errors import UserError
from models.demos.qwen25_7b.config.sampling import Sampling
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.generator import Generator
from models.demos.qwen25_7b.serving.text import Text

QUESTIONS = (
    "What is the capital of France?",
    "Count from 2 to 25.",
    "Spell the word banana.",
    "What is 7 + 5?",
    "Name the planets.",
    "What is the capital of Japan?",
    "What are the days of the week?",
)
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def text():
    return Text(SMALL_CHECKPOINT, instruct=True)


@pytest.fixture(scope="module")
def prompts(text):
    return [text.encode(question) for question in QUESTIONS]


@pytest.fixture(scope="module")
def replica(replica_of):
    replica = replica_of(3, 256)
    yield replica
    replica.close()


@pytest.fixture
def generator(replica):
    """With nothing in its caches that it knows of."""
    return Generator([replica])


@pytest.fixture(scope="module")
def alone(replica, prompts, text):
    """Each prompt's text by itself."""
    texts = []
    for prompt in prompts:
        texts += written(Generator([replica]), [prompt], text)
    return texts


def written(generator, prompts, text, **options) -> list[list[int]]:
    new = [[] for _ in prompts]
    for token in generator.generate(prompts, NEW_TOKENS, stop_ids=text.stop_ids, **options):
        new[token.user].append(token.id)
    return new


def computed(monkeypatch, replica) -> list[int]:
    """Filled with the number of tokens of each piece that is prefilled from now on."""
    pieces, real = [], replica.prefill
    monkeypatch.setattr(
        replica, "prefill", lambda work: (pieces.extend(p.end - p.first for p in work.pieces), real(work))
    )
    return pieces


def test_rows_are_filled_again_as_users_leave(generator, prompts, text, alone):
    assert "Paris" in text.tokenizer.decode(alone[0])
    assert written(generator, prompts, text) == alone


def test_a_few_blocks_serve_everybody_one_after_the_other(replica_of, prompts, text, alone):
    """Eight blocks hold two and a half of these texts: who came last makes room, and is computed anew."""
    replica = replica_of(3, 256, blocks=8)
    generator = Generator([replica])
    assert written(generator, prompts, text) == alone
    replica.close()


def test_what_a_cache_still_holds_is_not_computed_again(generator, replica, prompts, text, monkeypatch):
    """The next turn of a chat prefills what is new; the same beginning serves others, too."""
    beginning = sum(prompts, [])[:100]
    first, second = beginning + prompts[0], beginning + prompts[3]
    fresh = [written(Generator([replica]), [prompt], text)[0] for prompt in (first, second)]
    (answer,) = written(generator, [first], text)
    turn = first + answer + prompts[1]
    (of_turn,) = written(Generator([replica]), [turn], text)
    generator = Generator([replica])
    assert written(generator, [first], text) == fresh[:1]
    pieces = computed(monkeypatch, replica)
    assert written(generator, [second], text) == fresh[1:]
    assert written(generator, [turn], text) == [of_turn]
    assert pieces == [len(second) - 96, len(turn) - (len(first) + len(answer) - 1) // 32 * 32]


def test_who_is_cancelled_ends_and_others_go_on(generator, prompts, text, alone):
    new = [[] for _ in prompts]
    for token in generator.generate(prompts, NEW_TOKENS, stop_ids=text.stop_ids):
        new[token.user].append(token.id)
        if len(new[1]) == 3:
            generator.cancel(1)
            generator.cancel(6)  # has no row yet
    assert new[1] == alone[1][: len(new[1])] and 3 <= len(new[1]) <= 5 and new[6] == []
    assert [new[i] for i in (0, 2, 3, 4, 5)] == [alone[i] for i in (0, 2, 3, 4, 5)]


@pytest.mark.parametrize("where", ["prefill", "launch"])
def test_a_fault_ends_its_call_and_the_next_one_is_served(generator, replica, prompts, text, alone, monkeypatch, where):
    real, calls = getattr(replica, where), []

    def failing(*args):
        calls.append(args)
        if len(calls) == 2:
            raise RuntimeError("TT_FATAL: out of memory")
        return real(*args)

    with monkeypatch.context() as patched:
        patched.setattr(replica, where, failing)
        with pytest.raises(RuntimeError, match="TT_FATAL"):
            written(generator, prompts, text)
    assert written(generator, prompts, text) == alone


def test_options_that_the_chips_do_not_know_are_chosen_by_the_host_beside_others(generator, prompts, text):
    samplings = [
        Sampling(),
        Sampling(3.0, top_k=0, seed=1),
        Sampling(3.0, top_k=40, seed=2),
        Sampling(3.0, seed=3),
        Sampling(3.0, seed=4, presence_penalty=1.0, frequency_penalty=0.5),
    ]
    together = written(generator, prompts[:5], text, sampling=samplings)
    assert together == written(Generator(generator.replicas, on_host=True), prompts[:5], text, sampling=samplings)
    for prompt, sampling, expected in zip(prompts, samplings, together):
        assert written(generator, [prompt], text, sampling=sampling) == [expected]


def test_a_penalty_is_for_what_prompt_and_answer_have(generator, prompts, text):
    """Hugging Face's text with it."""
    from transformers import AutoModelForCausalLM

    hf = AutoModelForCausalLM.from_pretrained(SMALL_CHECKPOINT, dtype=torch.float32).eval()
    expected = []
    for prompt in prompts[:3]:
        out = hf.generate(
            torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=sorted(text.stop_ids),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long), repetition_penalty=1.3,
        )  # fmt: skip
        expected.append(out[0, len(prompt) :].tolist())
    assert written(generator, prompts[:3], text, sampling=Sampling(repetition_penalty=1.3)) == expected


def test_a_context_that_the_cache_cannot_hold_is_refused(replica_of):
    with pytest.raises(UserError, match="blocks"):
        replica_of(1, 256, blocks=4)


def test_a_prompt_that_was_left_before_it_was_computed_is_not_known(replica_of, prompts):
    """Each of these takes a pass of its own; the caller goes away after the first one's first token."""
    replica = replica_of(2, 1024)
    first, second = [(prompts[i] * 80)[:600] for i in (0, 1)]
    expected = list(Generator([replica]).generate([second], 4))
    list(Generator([replica]).generate([first, first[::-1]], 1))  # what the blocks hold from earlier
    generator = Generator([replica])
    with closing(generator.generate([first, second], 4)) as tokens:
        assert next(tokens).user == 0
    assert list(generator.generate([second], 4)) == expected
    replica.close()

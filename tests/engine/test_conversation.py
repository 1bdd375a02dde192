"""A chat's next turn begins with the ids of all earlier turns. Only new tokens are computed."""

import os

import pytest

from models.demos.qwen25_7b.engine.generator import Generator
from models.demos.qwen25_7b.text.tokenizer import Conversation

BLOCK = 32
QUESTIONS = ("What is the capital of France?", "Count from 3 to 12.", "What is 2 + 2?")


@pytest.fixture(scope="module")
def replica(replica_of):
    return replica_of(1, 320)


@pytest.fixture
def conversation(tokenizer):
    return Conversation(tokenizer, tokenizer.stop_ids)


def answer(generator, prompt, tokenizer, stop, most):
    stream = tokenizer.detokenizer(stop)
    for token in generator.generate([prompt], most, stop_ids=tokenizer.stop_ids):
        stream.add(token.id, last=token.last)
        if stream.stopped:
            generator.cancel(0)
    return stream


@pytest.mark.parametrize("stop, most", [((), 24), (("Paris",), 24), ((), 7)], ids=["whole", "stopped", "cut"])
def test_the_next_turn_computes_only_what_is_new(conversation, replica, tokenizer, monkeypatch, stop, most):
    generator = Generator([replica])
    computed_chunks, real = [], replica.prefill
    monkeypatch.setattr(
        replica,
        "prefill",
        lambda batch, mode: (computed_chunks.extend((p.start, p.end) for p in batch.chunks), real(batch, mode)),
    )
    computed = []
    for question in QUESTIONS:
        prompt = conversation.prompt(question)
        known = len(os.path.commonprefix([computed, prompt]))
        stream = answer(generator, prompt, tokenizer, stop, most)
        first, end = computed_chunks.pop()
        assert not computed_chunks and end == len(prompt)
        # Whole blocks are known. The key of the last token of a cut answer is not computed.
        assert known - BLOCK - 1 <= first <= known
        conversation.add_answer(stream.text, stream.ids)
        ended = stream.ids[-1] in tokenizer.stop_ids  # the template writes this token
        computed = prompt + list(stream.ids[: len(stream.ids) - ended])
    assert first > 0, "nothing was known"
    (again,) = [answer(Generator([replica]), prompt, tokenizer, stop, most).ids]
    assert again == stream.ids, "with nothing known it is another text"


def test_a_prompt_equals_the_templates_whole_conversation(conversation, tokenizer):
    """The ids of an answer stay, even if the tokenizer would split its text differently."""
    turns = []
    for question, ids in (("Hi.", "A B"), ("More.", "Yes")):
        prompt = conversation.prompt(question)
        turns.append({"role": "user", "content": question})
        assert tokenizer.hf.decode(prompt) == tokenizer.apply_chat_template(turns)
        spelled = [id for letter in ids for id in tokenizer.hf.encode(letter, add_special_tokens=False)]
        conversation.add_answer(ids, spelled + [max(tokenizer.stop_ids)])
        turns.append({"role": "assistant", "content": ids})
        assert conversation.prompt("?")[: len(prompt) + len(spelled)] == prompt + spelled


def test_a_text_is_cut_at_the_end_of_the_shown_text(conversation, tokenizer):
    conversation.prompt("Count.")
    conversation.add_answer("3, 4", tokenizer.hf.encode("3, 4, 5"))
    assert tokenizer.hf.decode(conversation.prompt("On.")) == tokenizer.apply_chat_template(
        [
            {"role": "user", "content": "Count."},
            {"role": "assistant", "content": "3, 4"},
            {"role": "user", "content": "On."},
        ]
    )

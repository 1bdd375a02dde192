"""A chat's next turn: its ids begin with all that came before, and only what is new is computed."""

import pytest

from models.demos.qwen25_7b.serving.conversation import Conversation
from models.demos.qwen25_7b.serving.generator import Generator

BLOCK = 32
QUESTIONS = ("What is the capital of France?", "Count from 3 to 12.", "What is 2 + 3?")


@pytest.fixture(scope="module")
def replica(replica_of):
    replica = replica_of(1, 320)
    yield replica
    replica.close()


@pytest.fixture
def conversation(text):
    return Conversation(text, text.stop_ids)


def answer(generator, prompt, text, stop, most):
    stream = text.stream(stop)
    for token in generator.generate([prompt.ids], most, stop_ids=text.stop_ids):
        stream.add(token.id, last=token.last)
        if stream.stopped:
            generator.cancel(0)
    return stream


@pytest.mark.parametrize("stop, most", [((), 24), (("Paris",), 24), ((), 7)], ids=["whole", "stopped", "cut"])
def test_the_next_turn_computes_only_what_is_new(conversation, replica, text, monkeypatch, stop, most):
    generator = Generator([replica])
    pieces, real = [], replica.prefill
    monkeypatch.setattr(
        replica, "prefill", lambda work: (pieces.extend((p.first, p.end) for p in work.pieces), real(work))
    )
    for question in QUESTIONS:
        prompt = conversation.prompt(question)
        known = len(conversation._ids)
        stream = answer(generator, prompt, text, stop, most)
        first, end = pieces.pop()
        assert not pieces and end == len(prompt.ids)
        # Whole blocks are known; of the last token of an answer that was cut nobody has computed the key.
        assert known - BLOCK - 1 <= first <= known
        conversation.answered(prompt, stream.text, stream.ids)
    assert first > 0, "nothing was known"
    (again,) = [answer(Generator([replica]), prompt, text, stop, most).ids]
    assert again == stream.ids, "with nothing known it is another text"


def test_a_prompt_reads_as_the_template_writes_the_whole_conversation(conversation, text):
    """An answer's own ids are kept, also where the tokenizer would cut its text in another way."""
    turns = []
    for question, ids in (("Hi.", "A B"), ("More.", "Yes")):
        prompt = conversation.prompt(question)
        turns.append({"role": "user", "content": question})
        assert text.tokenizer.decode(prompt.ids) == text.chat(turns)
        spelled = [id for letter in ids for id in text.tokenizer.encode(letter, add_special_tokens=False)]
        conversation.answered(prompt, ids, spelled + [max(text.stop_ids)])
        turns.append({"role": "assistant", "content": ids})
        assert conversation.prompt("?").ids[: len(prompt.ids) + len(spelled)] == prompt.ids + spelled


def test_a_text_that_goes_on_behind_what_was_shown_is_cut_there(conversation, text):
    prompt = conversation.prompt("Count.")
    conversation.answered(prompt, "3, 4", text.tokenizer.encode("3, 4, 5"))
    assert text.tokenizer.decode(conversation.prompt("On.").ids) == text.chat(
        [
            {"role": "user", "content": "Count."},
            {"role": "assistant", "content": "3, 4"},
            {"role": "user", "content": "On."},
        ]
    )

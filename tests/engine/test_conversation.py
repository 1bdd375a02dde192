"""A chat's next turn begins with the ids of all earlier turns. Only new tokens are computed, and the text stays
Hugging Face's.
"""

import os

import pytest

from models.demos.qwen25_7b.engine.generator import Generator
from models.demos.qwen25_7b.text.tokenizer import Conversation
from tests.generation import greedy

BLOCK = 32
QUESTIONS = ("What is the capital of France?", "Count from 3 to 12.", "What is 2 + 2?")


@pytest.fixture(scope="module")
def replica(replica_of):
    return replica_of(1, 320)


@pytest.fixture
def conversation(tokenizer):
    return Conversation(tokenizer, tokenizer.stop_ids)


@pytest.mark.parametrize("stop, most", [(("Paris",), 24), ((), 7)], ids=["stopped", "cut"])
def test_the_next_turn_computes_only_what_is_new(conversation, replica, tokenizer, hf, monkeypatch, stop, most):
    generator, chunks, real = Generator([replica]), [], replica.prefill
    monkeypatch.setattr(replica, "prefill", lambda batch, mode: (chunks.extend(batch.chunks), real(batch, mode)))
    computed = []
    for question in QUESTIONS:
        prompt = conversation.prompt(question)
        known = len(os.path.commonprefix([computed, prompt]))
        stream = tokenizer.detokenizer(stop)
        for token in generator.generate([prompt], most, stop_ids=tokenizer.stop_ids):
            stream.add(token.id, last=token.last)
            if stream.stopped:
                generator.cancel(0)
        answer = greedy(hf, prompt, most, tokenizer.stop_ids)
        assert list(stream.ids) == (answer[: len(stream.ids)] if stream.stopped else answer)
        chunk = chunks.pop()
        assert not chunks and chunk.end == len(prompt)
        # Whole blocks are known. The key of the last token of a cut answer is not computed.
        assert known - BLOCK - 1 <= chunk.start <= known
        conversation.add_answer(stream.text, stream.ids)
        ended = stream.ids[-1] in tokenizer.stop_ids  # the template writes this token
        computed = prompt + list(stream.ids[: len(stream.ids) - ended])
    assert chunk.start > 0, "nothing was known"


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

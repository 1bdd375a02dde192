"""Teacher forcing: each text is read as it stands, and what is expected belongs to its text and place."""

import pytest
import torch

from models.demos.qwen25_7b.evaluation.score import compare
from models.demos.qwen25_7b.evaluation.texts import ForcedText
from tests.evaluation.conftest import CONTEXT

LENGTHS = (40, 12, 30, 13, CONTEXT + 1, 36, 5)  # more texts than rows; the last token of a text is not read
BEGINNINGS = (33, 11, 1, 3, CONTEXT - 3, 4, 2)  # the second one is over after its prompt


@pytest.fixture(scope="module")
def texts(text) -> list[ForcedText]:
    questions = ["What is the capital of France?", "Count from 2 to 25.", "Spell the word banana.", "What is 7 + 5?"]
    ids = sum((text.encode(q) for q in questions), []) * 8
    return [ForcedText(ids[7 * i : 7 * i + n], b) for i, (n, b) in enumerate(zip(LENGTHS, BEGINNINGS))]


def assert_as_hugging_face(stream, texts, hugging_face):
    """Every place that is asked about is answered once, and as Hugging Face answers it."""
    reading = hugging_face.read([text.ids for text in texts])
    places = []
    for expected in stream:
        reference = reading.logits(expected.texts, expected.positions)
        score = compare(expected.logits, reference, torch.zeros(len(reference), dtype=torch.long))
        assert score.kl.max() < 0.03, (
            "of another text or place"
        )  # rounding to bfloat16: 0.006; of a neighbour: 1 and more
        places += zip(expected.texts, expected.positions)
    assert sorted(places) == [(i, at) for i, t in enumerate(texts) for at in range(t.beginning - 1, len(t.ids) - 1)]


def test_texts_of_all_lengths_through_a_few_rows(replica, texts, hugging_face):
    from models.demos.qwen25_7b.evaluation.forcing import forced

    assert_as_hugging_face(forced([replica], texts), texts, hugging_face)


def test_prefill_says_what_follows_each_of_a_prompts_tokens(replica, texts, hugging_face):
    from models.demos.qwen25_7b.evaluation.forcing import prefilled

    long = [texts[0], texts[4], ForcedText(texts[4].ids, 2)]  # the last asks about more than 32 tokens
    assert_as_hugging_face(prefilled(replica, long), long, hugging_face)

"""Teacher forcing: each prediction belongs to its sequence and position."""

import pytest
import torch
from qwen25_7b_lab.evaluation.divergence import compare
from qwen25_7b_lab.evaluation.teacher_forcing import predict_along, predict_with_decode, predict_with_prefill
from qwen25_7b_lab.evaluation.texts import ForcedText

from tests.evaluation.conftest import CONTEXT

LENGTHS = (40, 12, 30, 13, CONTEXT + 1, 36, 5)  # more sequences than slots; the last token of a sequence is not read
BEGINNINGS = (33, 11, 1, 3, CONTEXT - 3, 4, 2)  # of prompts; the second sequence has one prediction


@pytest.fixture(scope="module")
def texts(tokenizer) -> list[ForcedText]:
    questions = ["What is the capital of France?", "Count from 2 to 25.", "Spell the word banana.", "What is 7 + 5?"]
    ids = sum((tokenizer.encode(q) for q in questions), []) * 8
    return [ForcedText(ids[7 * i : 7 * i + n], b) for i, (n, b) in enumerate(zip(LENGTHS, BEGINNINGS))]


def assert_as_hugging_face(stream, texts, hugging_face):
    """Assert one prediction for every requested position, close to Hugging Face's logits."""
    reading = hugging_face.read([text.ids for text in texts])
    places = []
    for prediction in stream:
        reference = reading.logits(prediction.texts, prediction.positions)
        score = compare(prediction.logits, reference, torch.zeros(len(reference), dtype=torch.long))
        # Rounding to bfloat16 gives 0.006, a wrong position 1 and more.
        assert score.kl.max() < 0.03, "of another text or place"
        places += zip(prediction.texts, prediction.positions)
    assert sorted(places) == [(i, at) for i, t in enumerate(texts) for at in range(t.prompt_length - 1, len(t.ids) - 1)]


def test_sequences_of_all_lengths_through_a_few_slots(replica, texts, hugging_face):
    assert_as_hugging_face(predict_with_decode([replica], texts), texts, hugging_face)


def test_prefill_predicts_after_each_token_of_a_prompt(replica, texts, hugging_face):
    long = [texts[0], texts[4], ForcedText(texts[4].ids, 2)]  # the last one has more than 32 predictions
    assert_as_hugging_face(predict_with_prefill(replica, long), long, hugging_face)


def test_slots_step_through_places_of_one_text(replica, texts, hugging_face):
    """More places than slots for them. The first half is prefilled alone."""
    ids, first = texts[4].ids, 32
    stream = predict_along(replica, ids, first)
    assert_as_hugging_face(stream, [ForcedText(ids, first + 1)], hugging_face)

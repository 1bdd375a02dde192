"""The small checkpoint's tokens and logits are Hugging Face's in float32. tests/engine/test_tokens.py has more ways."""

import pytest
import torch
from qwen25_7b_lab.evaluation.teacher_forcing import predict_with_decode
from qwen25_7b_lab.evaluation.texts import ForcedText

from models.demos.qwen25_7b.engine.generator import Generator
from tests.generation import generate, greedy
from tests.metrics import assert_close

pytestmark = pytest.mark.make_test_on("N300")

NEW_TOKENS = 64
QUESTIONS = (
    "What is the capital of France?",
    "Count from 2 to 25.",  # the answer uses all new tokens
    "Tell a story about teacher Tom, doctor Anna and a fox.",
    "What is 7 + 5?",
    "Spell the word banana.",
    "What are the days of the week?",
    "Name the planets.",
    "Name the months of the year.",
)
USERS = len(QUESTIONS)


@pytest.fixture(scope="module")
def prompts(tokenizer):
    return [tokenizer.encode(question) for question in QUESTIONS]


@pytest.fixture(scope="module")
def answers(hf, tokenizer, prompts):
    """Hugging Face's answers."""
    return [greedy(hf, prompt, NEW_TOKENS, tokenizer.stop_ids) for prompt in prompts]


@pytest.fixture(scope="module")
def replica(replica_of):
    return replica_of(USERS, 2048)


def test_greedy_tokens_of_a_batch_equal_hugging_faces(replica, tokenizer, prompts, answers):
    assert "Paris" in tokenizer.hf.decode(answers[0])
    assert max(map(len, answers)) == NEW_TOKENS, "no answer is long"
    assert generate(Generator([replica]), prompts, NEW_TOKENS, stop_ids=tokenizer.stop_ids) == answers


@pytest.mark.parametrize("tokens", [1, 31, 32, 33, 127, 128, 129, 300, 1030, 2047])
@torch.no_grad()
def test_prefill_of_any_length(replica, hf, prompts, answers, tokens):
    """Lengths around a tile and around whole chunks. The longest take several prefill batches."""
    ids = sum((prompt + answer for prompt, answer in zip(prompts, answers)), [])
    ids = (ids * (tokens // len(ids) + 1))[:tokens]
    (prediction,) = predict_with_decode([replica], [ForcedText([*ids, 0], len(ids))])
    expected = hf(torch.tensor([ids])).logits[0, -1]
    assert_close(prediction.logits[0].float(), expected, pcc=0.999)

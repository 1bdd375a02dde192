"""QwenForCausalLM under the calls of Tenstorrent's vLLM plugin: everybody gets Hugging Face's text, whatever the engine does."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.generator_vllm import QwenForCausalLM
from models.demos.qwen25_7b.serving.text import Text

from vllm_engine import Engine, Request, start

ROWS, MAX_LEN, NEW_TOKENS = 32, 512, 20
CAPITALS = ("France", "Japan", "Italy", "Spain", "Egypt", "Peru", "Canada", "Kenya", "Norway", "Cuba", "India", "China")
QUESTIONS = [f"What is the capital of {country}?" for country in CAPITALS] + [
    *(f"Count from {n} to {n + 12}." for n in range(2, 14)),
    *(f"Spell the word {word}." for word in ("banana", "house", "garden", "window", "apple", "river")),
    *(f"What is {a} + {b}?" for a, b in ((7, 5), (3, 4), (9, 8), (2, 6), (5, 5), (8, 1))),
    "Name the planets.",
    "What are the days of the week?",
    "Name the months of the year.",
    "Tell a story about teacher Tom, doctor Anna and a fox.",
]  # fmt: skip


@pytest.fixture(scope="module")
def text():
    return Text(SMALL_CHECKPOINT, instruct=True)


@pytest.fixture(scope="module")
def prompts(text) -> list[list[int]]:
    """48, of 11 to some 400 tokens: questions, and questions behind other questions."""
    short = [text.encode(question) for question in QUESTIONS]
    return short + [sum(short[i : i + 2 + 2 * i], []) for i in range(48 - len(short))]


@pytest.fixture(scope="module")
def hf():
    return AutoModelForCausalLM.from_pretrained(SMALL_CHECKPOINT, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def expected(hf, prompts, text) -> list[list[int]]:
    return [greedy(hf, prompt, text.stop_ids) for prompt in prompts]


@torch.no_grad()
def greedy(hf, prompt, stop_ids, **options) -> list[int]:
    out = hf.generate(
        torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=sorted(stop_ids),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long), **options,
    )  # fmt: skip
    return out[0, len(prompt) :].tolist()


@pytest.fixture(scope="module")
def served(mesh_device, checkpoint):
    """(model, caches, blocks) with blocks of 64."""
    model, caches, blocks = start(QwenForCausalLM, mesh_device, checkpoint, rows=ROWS, max_len=MAX_LEN, block=64)
    yield model, caches, blocks
    model.replica.close()


def engine(served, **options) -> Engine:
    return Engine(*served, 64, rows=ROWS, max_len=MAX_LEN, **options)


def requests(prompts, text, **options) -> list[Request]:
    return [Request(list(prompt), NEW_TOKENS, stop_ids=frozenset(text.stop_ids), **options) for prompt in prompts]


def test_48_requests_through_32_rows(served, prompts, expected, text):
    assert engine(served).serve(requests(prompts, text)) == expected

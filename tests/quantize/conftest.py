"""Fixtures: the quantized small checkpoint, built once, and texts for calibration and scoring."""

import random
from pathlib import Path

import pytest

from models.demos.qwen25_7b.config import PERFORMANCE
from models.demos.qwen25_7b.quantize.quantizer import quantize
from models.demos.qwen25_7b.reference.corpus import draw_chat, make_questions
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.tokenizer import ChatTokenizer

TOKENS = 1024


def chats(seed: int) -> str:
    """Return chats from the small checkpoint's training data, at least TOKENS tokens."""
    tokenizer = ChatTokenizer(SMALL_CHECKPOINT, instruct=True).hf
    questions, rng, text = make_questions(), random.Random(seed), ""
    while len(tokenizer.encode(text)) < TOKENS:
        text += tokenizer.apply_chat_template(draw_chat(questions, rng), tokenize=False)
    return text


@pytest.fixture(scope="session")
def calibration(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("calibration") / "chats.txt"
    file.write_text(chats(seed=5))
    return file


@pytest.fixture(scope="session")
def held_out() -> str:
    return chats(seed=6)


@pytest.fixture(scope="session")
def quantized(tmp_path_factory, calibration) -> Path:
    """The directory that the tool wrote."""
    out = tmp_path_factory.mktemp("quantized") / "model"
    quantize(SMALL_CHECKPOINT, calibration, out, PERFORMANCE, TOKENS)
    return out

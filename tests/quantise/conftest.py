"""The small checkpoint rounded by the tool, once for all tests; texts of its kind for calibration and for judging."""

import random
from pathlib import Path

import pytest

from models.demos.qwen25_7b.quantize.run import quantise
from models.demos.qwen25_7b.reference.corpus import draw_chat, make_questions
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.text import Text

TOKENS = 1024


def chats(seed: int) -> str:
    """At least TOKENS tokens of chats of the small checkpoint's world."""
    tokenizer = Text(SMALL_CHECKPOINT, instruct=True).tokenizer
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
def quantised(tmp_path_factory, calibration) -> Path:
    """The directory that the tool wrote."""
    out = tmp_path_factory.mktemp("quantised") / "model"
    quantise(SMALL_CHECKPOINT, calibration, out, ["gate", "up"], TOKENS)
    return out

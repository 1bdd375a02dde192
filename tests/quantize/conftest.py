"""Fixtures: the quantized small checkpoint, built once, and texts for calibration and scoring."""

from pathlib import Path

import pytest
from qwen25_7b_lab.quantize.quantizer import quantize

from models.demos.qwen25_7b.config import PERFORMANCE
from tests.generation import training_chats

TOKENS = 1024


@pytest.fixture(scope="session")
def calibration(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("calibration") / "chats.txt"
    file.write_text(training_chats(2))
    return file


@pytest.fixture(scope="session")
def quantized(tmp_path_factory, checkpoint, calibration) -> Path:
    """The directory that the tool wrote."""
    out = tmp_path_factory.mktemp("quantized") / "model"
    quantize(checkpoint, calibration, out, PERFORMANCE, TOKENS)
    return out

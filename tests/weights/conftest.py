"""Fixtures: a private checkpoint, a cache, and the expected shards."""

import shutil
from pathlib import Path

import pytest

from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT


@pytest.fixture
def model(tmp_path) -> Path:
    """A copy of the small checkpoint that a test may damage."""
    return Path(shutil.copytree(SMALL_CHECKPOINT, tmp_path / "model"))


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def right():
    """The expected shards of the small checkpoint for two chips, recipe bfp8."""
    from tests.weights.support import made

    return made(SMALL_CHECKPOINT)

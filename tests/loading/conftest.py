"""A checkpoint of one's own to load, a cache to load it through, and what must come of it."""

import shutil
from pathlib import Path

import pytest

from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT


@pytest.fixture
def model(tmp_path) -> Path:
    """A copy of the small checkpoint, to be spoilt."""
    return Path(shutil.copytree(SMALL_CHECKPOINT, tmp_path / "model"))


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def right():
    """What a load of the small checkpoint for two chips, recipe bfp8, must give."""
    from tests.loading.support import made

    return made(SMALL_CHECKPOINT)

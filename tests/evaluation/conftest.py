"""Fixtures: the small checkpoint on a mesh, and Hugging Face's float32 model."""

import pytest
from qwen25_7b_lab.evaluation.reference import HuggingFace

from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT

ROWS, CONTEXT = 3, 96  # few slots, so that sequences wait for one


@pytest.fixture(scope="session")
def hugging_face() -> HuggingFace:
    return HuggingFace(SMALL_CHECKPOINT)


@pytest.fixture(scope="module")
def replica(replica_of, mesh_device):
    """A replica in bf16. Its logits differ from Hugging Face's only by rounding."""
    yield replica_of(ROWS, CONTEXT)
    mesh_device.clear_program_cache()

"""Fixtures: the small checkpoint on a mesh, and Hugging Face's float32 model."""

import pytest
from qwen25_7b_lab.evaluation.reference import HuggingFace

from models.demos.qwen25_7b.config import BF16
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.tt.mesh import traces_available
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint

ROWS, CONTEXT = 3, 96  # few slots, so that sequences wait for one


@pytest.fixture(scope="session")
def hugging_face() -> HuggingFace:
    return HuggingFace(SMALL_CHECKPOINT)


@pytest.fixture(scope="module")
def replica(mesh_device, queues):
    """A replica in bf16. Its logits differ from Hugging Face's only by rounding."""
    from models.demos.qwen25_7b.engine.replica import Replica

    checkpoint = Checkpoint.open(SMALL_CHECKPOINT)
    how = dict(users=ROWS, max_seq_len=CONTEXT, traced=traces_available(), queues=queues)
    replica = Replica.load(mesh_device, checkpoint, checkpoint.config, BF16, **how)
    yield replica
    replica.close()
    mesh_device.clear_program_cache()

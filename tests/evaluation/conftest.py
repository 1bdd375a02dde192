"""The small checkpoint on a mesh, giving logits, and Hugging Face's float32 beside it."""

import pytest

from models.common.mesh import traces_available
from models.demos.qwen25_7b.config import BF16
from models.demos.qwen25_7b.evaluation.reference import HuggingFace
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.text import Text
from models.demos.qwen25_7b.weights import Checkpoint

ROWS, CONTEXT = 3, 96  # few rows, so that texts have to wait for one


@pytest.fixture(scope="session")
def hugging_face() -> HuggingFace:
    return HuggingFace(SMALL_CHECKPOINT)


@pytest.fixture(scope="session")
def text() -> Text:
    return Text(SMALL_CHECKPOINT, instruct=True)


@pytest.fixture(scope="module")
def replica(mesh_device, queues):
    """bf16: what it says differs from Hugging Face's by rounding alone."""
    from models.demos.qwen25_7b.serving.replica import Replica

    checkpoint = Checkpoint.open(SMALL_CHECKPOINT)
    how = dict(users=ROWS, max_seq_len=CONTEXT, traced=traces_available(), queues=queues)
    replica = Replica.load(mesh_device, checkpoint, checkpoint.config, BF16, **how)
    yield replica
    replica.close()
    mesh_device.clear_program_cache()

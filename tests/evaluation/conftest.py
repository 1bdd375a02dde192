"""The small checkpoint on a mesh, giving logits, and Hugging Face's float32 beside it."""

import pytest

from models.common.mesh import traces_available
from models.demos.qwen25_7b.config import BF16, ParallelPlan
from models.demos.qwen25_7b.evaluation.reference import HuggingFace
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.text import Text
from models.demos.qwen25_7b.weights import Checkpoint, ModelWeights

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
    from models.demos.qwen25_7b.tt.transformer import TtTransformer

    checkpoint = Checkpoint.open(SMALL_CHECKPOINT)
    config = checkpoint.config
    plan = ParallelPlan.make(config, mesh_device.shape[1])
    weights = ModelWeights(checkpoint, config, plan)
    model = TtTransformer(mesh_device, weights, config, plan, BF16, batch=ROWS, max_seq_len=CONTEXT)
    replica = Replica(model, traced=traces_available(), queues=queues, host_logits=True)
    yield replica
    replica.close()
    mesh_device.clear_program_cache()

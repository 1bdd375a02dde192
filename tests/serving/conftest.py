"""The small checkpoint, and models of it on a mesh."""

import pytest

from models.common.mesh import traces_available
from models.demos.qwen25_7b.config import BF16, ParallelPlan
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.weights import Checkpoint, ModelWeights


@pytest.fixture(scope="session")
def checkpoint() -> Checkpoint:
    return Checkpoint.open(SMALL_CHECKPOINT)


@pytest.fixture(scope="session")
def vocab_size(checkpoint) -> int:
    return checkpoint.config.vocab_size


@pytest.fixture(scope="module")
def model_of(mesh_device, checkpoint):
    """model_of(batch, max_seq_len): a TtTransformer of the small checkpoint, recipe bf16."""
    from models.demos.qwen25_7b.tt.transformer import TtTransformer

    config = checkpoint.config
    plan = ParallelPlan.make(config, mesh_device.shape[1])
    weights = ModelWeights(checkpoint, config, plan)
    return lambda batch, max_seq_len: TtTransformer(
        mesh_device, weights, config, plan, BF16, batch=batch, max_seq_len=max_seq_len
    )


@pytest.fixture(scope="module")
def replica_of(model_of, queues):
    """replica_of(batch, max_seq_len): such a model with its inputs and traces."""
    from models.demos.qwen25_7b.serving.replica import Replica

    return lambda batch, max_seq_len: Replica(model_of(batch, max_seq_len), traced=traces_available(), queues=queues)

"""The small checkpoint, and replicas of it on a mesh."""

import pytest

from models.common.mesh import traces_available
from models.demos.qwen25_7b.config import BF16
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.weights import Checkpoint


@pytest.fixture(scope="session")
def checkpoint() -> Checkpoint:
    return Checkpoint.open(SMALL_CHECKPOINT)


@pytest.fixture(scope="session")
def vocab_size(checkpoint) -> int:
    return checkpoint.config.vocab_size


@pytest.fixture(scope="module")
def replica_of(mesh_device, checkpoint, queues):
    """replica_of(users, max_seq_len, **options): a Replica of the small checkpoint, recipe bf16 unless it is told."""
    from models.demos.qwen25_7b.serving.replica import Replica

    def replica_of(users, max_seq_len, recipe=BF16, **options):
        options = dict(traced=traces_available(), queues=queues) | options
        return Replica.load(
            mesh_device, checkpoint, checkpoint.config, recipe, users=users, max_seq_len=max_seq_len, **options
        )

    return replica_of

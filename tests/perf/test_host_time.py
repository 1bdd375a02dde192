"""What a traced step costs the host beside ttnn's own calls: two hundred microseconds at most, so that the chips never wait."""

import pytest

from models.common.mesh import traces_available
from models.demos.qwen25_7b.config import BFP8, ParallelPlan
from models.demos.qwen25_7b.perf.host_time import host_time, steps_of
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.replica import Replica
from models.demos.qwen25_7b.tt.transformer import TtTransformer
from models.demos.qwen25_7b.weights import Checkpoint, ModelWeights

LIMIT = 200e-6  # seconds


@pytest.mark.skipif(not traces_available(), reason="slow dispatch has no traces")
def test_a_traced_step_leaves_the_host_idle(mesh_device, queues, host_alone):
    checkpoint = Checkpoint.open(SMALL_CHECKPOINT)
    config = checkpoint.config
    plan = ParallelPlan.make(config, mesh_device.shape[1])
    model = TtTransformer(
        mesh_device, ModelWeights(checkpoint, config, plan), config, plan, BFP8, batch=32, max_seq_len=128
    )
    replica = Replica(model, traced=True, queues=queues)
    with host_alone():
        times = {name: host_time(step) for name, step in steps_of(replica).items()}
    replica.close()
    assert all(time.ours < LIMIT for time in times.values()), times
    assert all(time.ours < time.whole for time in times.values()), times

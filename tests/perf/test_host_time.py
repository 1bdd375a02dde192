"""A traced step takes at most 200 microseconds of host time outside ttnn. The chips never wait.

A step of vLLM takes no more for long sequences where the chips sample.
"""

import pytest

from models.demos.qwen25_7b.config import BFP8
from models.demos.qwen25_7b.engine.replica import Replica
from models.demos.qwen25_7b.perf.host_time import REQUESTS, host_time, steps_of, vllm_model, vllm_step
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.tt.mesh import traces_available
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint

LIMIT = 200e-6  # seconds


@pytest.mark.skipif(not traces_available(), reason="slow dispatch has no traces")
def test_a_traced_step_leaves_the_host_idle(mesh_device, queues, host_alone):
    checkpoint = Checkpoint.open(SMALL_CHECKPOINT)
    how = dict(users=32, max_seq_len=128, traced=True, queues=queues)
    replica = Replica.load(mesh_device, checkpoint, checkpoint.config, BFP8, **how)
    with host_alone():
        times = {name: host_time(step) for name, step in steps_of(replica).items()}
    replica.close()
    assert all(time.outside_ttnn < LIMIT for time in times.values()), times
    assert all(time.outside_ttnn < time.whole for time in times.values()), times


def test_a_step_of_vllm_takes_no_longer_for_longer_sequences(mesh_device, host_alone):
    """Lists of 100,000 tokens in each of 32 slots would take 100 times the step's own work."""
    model = vllm_model(mesh_device, vocab_size=1024)
    with host_alone():
        for name in ("Instruct's defaults", "frequency penalty"):
            short, long = (host_time(vllm_step(model, REQUESTS[name], tokens), steps=10) for tokens in (100, 100_000))
            assert long.outside_ttnn < 3 * short.outside_ttnn, name
    model.replica.close()

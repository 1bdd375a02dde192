"""The planned L1 map of a core equals ttnn's, op by op.

Tested: a decode step, prefill, and prefill after a cached prefix.
"""

from dataclasses import replace

import pytest
from qwen25_7b_lab.perf.l1_map import L1Map, map_prefill, map_step

from models.demos.qwen25_7b.config import PERFORMANCE

pytestmark = pytest.mark.usefixtures("without_values")

SEMAPHORES = 512  # bytes of a core that collectives allocate in their first run
# Planned circular buffers over reported ones. Attention's are fitted to heads of 128 channels.
# The small checkpoint's heads have 32 channels and need more.
BUFFERS = {"tiny": (0.8, 1.3), "7b": (1.0, 1.25)}


CASES = "step", "prefill", "prefill after a cached prefix", "prefill, output bias", "padded heads after a cached prefix"


@pytest.fixture(scope="module", params=CASES)
def mapped(request, mesh_device, config) -> L1Map:
    config = replace(config, o_bias="bias" in request.param)
    if "padded" in request.param:
        config = replace(config, head_dim=config.head_dim - 8)
    if request.param == "step":
        return map_step(mesh_device, config, PERFORMANCE, 32)
    return map_prefill(mesh_device, config, PERFORMANCE, 256, cached_prefix="cached" in request.param)


def test_the_plan_has_every_tensor_of_a_layer_and_no_other(mapped):
    """Each tensor also lies where it is planned. The mock allocates no buffer for a reduce-scatter."""
    for row in mapped.rows:
        unused = dict(row.planned.tensors).get("its buffer", 0)
        assert -SEMAPHORES <= row.planned_tensors - row.tensors <= unused, f"{row.planned.op}: {row}"
        assert row.planned_reach - row.reach == unused, f"{row.planned.op}: {row}"


def test_reported_circular_buffers_are_the_planned_ones(mapped, size):
    least, most = BUFFERS[size]
    for row in mapped.rows:
        if row.buffers and row.planned.buffers:
            assert least <= row.planned.buffers / row.buffers <= most, f"{row.planned.op}: {row}"


def test_persistent_bytes_are_within_the_plan(mapped):
    assert mapped.captured_persistent <= mapped.persistent < mapped.room // 4

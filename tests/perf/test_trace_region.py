"""A prefill trace takes no more of the trace region than `traces_that_fit` plans for it, at the 7B's dims."""

import pytest
from qwen25_7b_lab.perf.capture import capture_batch, layer_kinds, one_layer_of_each_kind
from qwen25_7b_lab.perf.commands import small_vocabulary

from models.demos.qwen25_7b.config import PERFORMANCE, QWEN25_7B
from models.demos.qwen25_7b.engine.prefill_batch import PrefillBatch, PrefillChunk, Prompt
from models.demos.qwen25_7b.engine.trace import AROUND_BYTES, LAYER_BYTES

pytestmark = pytest.mark.usefixtures("without_values")

OPERATION_BYTES = 7_700  # of a trace, at most: see engine/trace.py
START, ROWS, SEQUENCES = 1024, 256, 8


def test_a_trace_of_the_recipe_with_the_most_operations_fits_its_share(mesh_device):
    config = small_vocabulary(QWEN25_7B)
    counts = list(layer_kinds(config, PERFORMANCE).values())
    with one_layer_of_each_kind(mesh_device, config, PERFORMANCE, 1, 2048) as replica:
        end = START + ROWS // SEQUENCES
        chunk = PrefillChunk(Prompt(0, range(end), START, range(end // 32)), START, START, end)
        batch = PrefillBatch(ROWS, (chunk,) * SEQUENCES, chunked=True, sequences=SEQUENCES)
        step = capture_batch(replica, batch, counts)
    layers = sum(len(ops) * count for ops, count in step.kinds)
    assert layers * OPERATION_BYTES <= LAYER_BYTES * step.layers
    assert len(step.before + step.after) * OPERATION_BYTES <= AROUND_BYTES

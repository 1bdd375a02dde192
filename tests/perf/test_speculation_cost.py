"""Speculation: captured and modeled cost of several tokens a step."""

from dataclasses import replace

import pytest
from qwen25_7b_lab.perf.capture import capture_step, one_layer_of_each_kind
from qwen25_7b_lab.prices.op_costs import work_of

from models.demos.qwen25_7b.config import BFP8
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint

pytestmark = pytest.mark.usefixtures("without_values")


def test_each_further_token_is_one_more_cache_update_in_every_layer(mesh_device):
    config = replace(Checkpoint.open(SMALL_CHECKPOINT).config, num_hidden_layers=1)
    plain, verifying = (capture_step(mesh_device, config, BFP8, 2, tokens) for tokens in (1, 3))
    updates = [sum("UpdateCache" in op.name for op in step.layer) for step in (plain, verifying)]
    assert updates[1] == 3 * updates[0] and len(verifying.layer) - len(plain.layer) == updates[1] - updates[0]
    assert len(verifying.after) == len(plain.after) - 3, "the chips' own positions do not advance"
    attention = next(op for op in verifying.layer if "Sdpa" in op.name)
    here = dict(chips=1, grid_cores=64, users=2, position=100)
    one, three = (work_of(attention, **here, tokens=tokens).scattered for tokens in (1, 3))
    assert three == 3 * one > 0


@pytest.mark.chips(4, 8)
def test_a_grouped_step_reads_each_cache_once(mesh_device):
    """On chips with one KV head of the small checkpoint's four. It gathers the queries of the slots, which is one
    operation more.
    """
    config = replace(Checkpoint.open(SMALL_CHECKPOINT).config, num_hidden_layers=1)
    lent, grouped = (capture_step(mesh_device, config, BFP8, 2, tokens).layer for tokens in (3, 4))
    updates = [sum("UpdateCache" in op.name for op in layer) for layer in (lent, grouped)]
    assert len(grouped) - updates[1] == len(lent) - updates[0] + 1
    here = dict(chips=1, grid_cores=64, users=2, position=100)
    attention = next(op for op in grouped if "Sdpa" in op.name)
    plain = next(op for op in capture_step(mesh_device, config, BFP8, 2).layer if "Sdpa" in op.name)
    reads = [work_of(op, **here, tokens=t).scattered for op, t in ((plain, 1), (attention, 4))]
    queries = attention.inputs[0].bytes  # in DRAM, as the grouped op takes them
    assert 0 < reads[0] == reads[1] - queries
    long = replace(config, max_position_embeddings=32768)
    for context, groups in ((16384, 1), (32768, 2)):  # beyond that, scores of 8 tokens exceed L1
        with one_layer_of_each_kind(mesh_device, long, BFP8, 1, context, 8) as replica:
            assert replica.groups == groups

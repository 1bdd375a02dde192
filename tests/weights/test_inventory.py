"""The inventory covers the whole model on every split."""

import pytest

from models.demos.qwen25_7b.config import BFP8, QWEN25_7B
from models.demos.qwen25_7b.plans.parallel_plan import ParallelPlan
from models.demos.qwen25_7b.weights.inventory import inventory, shard_bytes
from models.demos.qwen25_7b.weights.slices import Projection, WeightShard


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_the_inventory_has_every_element_of_the_checkpoint(tp):
    """KV heads count once on each chip that holds them. Zeros of padding do not count.

    K's biases of the layers that may be centered are read in two parts.
    """
    plan = ParallelPlan.make(QWEN25_7B, tp)
    shards = inventory(QWEN25_7B, plan, BFP8)
    taken = sum(_elements(shard) for shard in shards)
    copies = tp * plan.kv_heads // QWEN25_7B.num_key_value_heads - 1
    kv = 2 * plan.kv_width(128) * tp // (copies + 1) * (QWEN25_7B.hidden_size + 1)
    biases = len(QWEN25_7B.centered_layers) * QWEN25_7B.num_key_value_heads * 128
    assert taken == 7_615_616_512 + QWEN25_7B.num_hidden_layers * copies * kv + biases


def _elements(shard: WeightShard) -> int:
    if not isinstance(shard.slice, Projection):
        return shard.slice.shape[0] * shard.slice.shape[1]
    return shard.slice.other * sum(block.count for block in shard.slice.blocks if hasattr(block, "tensor"))


@pytest.mark.parametrize("tp, gigabytes", [(1, 8.61), (2, 8.61), (8, 9.00)])
def test_the_7b_in_bfp8_is_half_of_its_checkpoint_and_the_rest_of_its_embedding(tp, gigabytes):
    """tp 8 adds zero heads, second copies of KV heads, and two tiles of MLP columns a chip."""
    shards = inventory(QWEN25_7B, ParallelPlan.make(QWEN25_7B, tp), BFP8)
    assert sum(map(shard_bytes, shards)) / 1e9 == pytest.approx(gigabytes, rel=0.001)

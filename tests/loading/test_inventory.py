"""The inventory has the whole model, whatever the split."""

import pytest

from models.demos.qwen25_7b.config import BFP8, QWEN25_7B, ParallelPlan
from models.demos.qwen25_7b.loading.inventory import inventory, piece_bytes
from models.demos.qwen25_7b.weights import Piece, Projection


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_the_inventory_has_every_element_of_the_checkpoint(tp):
    """Counted: KV heads on each chip that holds one, zeros of padding not at all."""
    plan = ParallelPlan.make(QWEN25_7B, tp)
    pieces = inventory(QWEN25_7B, plan, BFP8)
    taken = sum(_elements(piece) for piece in pieces)
    copies = tp * plan.kv_heads // QWEN25_7B.num_key_value_heads - 1
    kv = 2 * plan.kv_width(128) * tp // (copies + 1) * (QWEN25_7B.hidden_size + 1)
    assert taken == 7_615_616_512 + QWEN25_7B.num_hidden_layers * copies * kv


def _elements(piece: Piece) -> int:
    if not isinstance(piece.part, Projection):
        return piece.part.shape[0] * piece.part.shape[1]
    return piece.part.other * sum(block.count for block in piece.part.blocks if hasattr(block, "tensor"))


@pytest.mark.parametrize("tp, gigabytes", [(1, 8.61), (2, 8.61), (8, 9.00)])
def test_the_7b_in_bfp8_is_half_of_its_checkpoint_and_the_rest_of_its_embedding(tp, gigabytes):
    """tp 8: zero heads, KV heads twice, and two tiles more of the MLP's columns a chip."""
    pieces = inventory(QWEN25_7B, ParallelPlan.make(QWEN25_7B, tp), BFP8)
    assert sum(map(piece_bytes, pieces)) / 1e9 == pytest.approx(gigabytes, rel=0.001)

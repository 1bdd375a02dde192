"""The default split of a model over a machine's chips, and refused splits."""

from dataclasses import replace

import pytest

from models.demos.qwen25_7b.config import QWEN25_7B
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.evaluation.model import split_for
from models.demos.qwen25_7b.plans.machines import machine


@pytest.mark.parametrize(
    "mesh, heads, kv_heads, tp",
    [("T3K", 28, 4, 8), ("T3K", 14, 2, 8), ("T3K", 9, 3, 1), ("N300", 9, 3, 1), ("T3K", 12, 6, 2), ("N150", 28, 4, 1)],
)
def test_the_default_split_has_as_many_chips_as_share_the_kv_heads(mesh, heads, kv_heads, tp):
    config = replace(QWEN25_7B, num_attention_heads=heads, num_key_value_heads=kv_heads)
    split = split_for(config, mesh, None)
    assert (split.tp, split.dp) == (tp, machine(mesh).chips // tp)


def test_a_requested_split_is_kept_or_refused():
    three = replace(QWEN25_7B, num_attention_heads=9, num_key_value_heads=3)
    assert split_for(QWEN25_7B, "T3K", 2).tp == 2
    for kind, config, tp, message in (("N300", three, 2, "3 KV heads"), ("N300", QWEN25_7B, 4, "tp must divide 2")):
        with pytest.raises(UserError, match=message):
            split_for(config, kind, tp)

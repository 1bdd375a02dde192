"""A layer of the 14B and of the 32B runs within its planned L1, and is refused on one chip.

Nothing is computed. The library checks the ops' arguments and allocates their tensors.
"""

from dataclasses import replace

import pytest

from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.config import PERFORMANCE, QWEN25_7B
from models.demos.qwen25_7b.perf.l1_map import L1Map, map_prefill, map_step

SEMAPHORES = 512  # bytes that collectives allocate in their first run
ONE_LAYER = replace(
    QWEN25_7B,
    num_hidden_layers=1,
    vocab_size=4096,
    hidden_size=5120,
    num_attention_heads=40,
    num_key_value_heads=8,
    bos_token_id=None,
    eos_token_ids=(),
)
SIZES = {
    "14B": replace(ONE_LAYER, intermediate_size=13824),
    "32B": replace(ONE_LAYER, intermediate_size=27648),
}
FEWEST = {"14B": 2, "32B": 4}  # number of chips with enough DRAM for all layers


@pytest.mark.parametrize("model", SIZES)
def test_a_layer_is_planned_or_refused(mesh_device, host_alone, model):
    config, chips = SIZES[model], mesh_device.shape[1]
    with host_alone():
        if chips == 1:
            with pytest.raises(
                UserError, match="40 of the model's 40 query heads.* use more chips a replica"
            ):
                map_step(mesh_device, config, PERFORMANCE, 32)
        elif chips >= FEWEST[model]:
            assert_as_planned(map_step(mesh_device, config, PERFORMANCE, 32))
            assert_as_planned(
                map_prefill(mesh_device, config, PERFORMANCE, 512, cached_prefix=False)
            )
            assert_as_planned(
                map_prefill(mesh_device, config, PERFORMANCE, 512, cached_prefix=True)
            )


def assert_as_planned(mapped: L1Map) -> None:
    for row in mapped.rows:
        assert row.tensors <= row.planned_tensors + SEMAPHORES, f"{row.planned.op}: {row}"

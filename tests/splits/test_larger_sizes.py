"""A layer of other models runs within its planned L1; the 14B and the 32B are refused on one chip.

Nothing is computed. The library checks the ops' arguments and allocates their tensors.
"""

import pytest

from models.demos.qwen25_7b.config import PERFORMANCE
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.perf.l1_map import L1Map, map_prefill, map_step
from tests.families import cut

# A T3K's shorter rows are those of these machines.
pytestmark = pytest.mark.make_test_on("N150", "N300", "N150x4", "T3K")

SEMAPHORES = 512  # bytes that collectives allocate in their first run
FEWEST = {"14B": 2, "32B": 4, "Qwen3-8B": 1}  # number of chips with enough DRAM for all layers


@pytest.mark.parametrize("model", FEWEST)
def test_a_layer_is_planned_or_refused(mesh_device, host_alone, model):
    config, chips = cut(model, layers=1), mesh_device.shape[1]
    with host_alone():
        if chips == 1 < FEWEST[model]:
            with pytest.raises(UserError, match="40 of the model's 40 query heads.* more chips"):
                map_step(mesh_device, config, PERFORMANCE, 32)
        elif chips >= FEWEST[model]:
            assert_as_planned(map_step(mesh_device, config, PERFORMANCE, 32))
            for prefix in (False, True):
                prefill = map_prefill(mesh_device, config, PERFORMANCE, 512, cached_prefix=prefix)
                assert_as_planned(prefill)


def assert_as_planned(mapped: L1Map) -> None:
    for row in mapped.rows:
        assert row.tensors <= row.planned_tensors + SEMAPHORES, f"{row.planned.op}: {row}"

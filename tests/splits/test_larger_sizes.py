"""A layer of other models runs within its planned L1, prefill with the most rows; the 14B and the 32B are refused on
one chip.

Nothing is computed. The library checks the ops' arguments and allocates their tensors.
"""

import pytest
from qwen25_7b_lab.perf.l1_map import L1Map, map_prefill, map_step

from models.demos.qwen25_7b.config import PERFORMANCE
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.plans.grids import TILE
from models.demos.qwen25_7b.plans.planner import MAX_PREFILL_ROWS
from tests.families import cut

# A T3K's shorter rows are those of these machines.
pytestmark = pytest.mark.make_test_on("N150", "N300", "N150x4", "T3K")

SEMAPHORES = 512  # bytes that collectives allocate in their first run
# number of chips with enough DRAM for all layers
FEWEST = {"0.5B": 1, "1.5B": 1, "Qwen3-8B": 1, "Llama-3.1-8B": 1, "14B": 2, "32B": 4}


@pytest.mark.parametrize("model", FEWEST)
def test_a_layer_is_planned_or_refused(mesh_device, host_alone, model):
    config, chips = cut(model, layers=1), mesh_device.shape[1]
    with host_alone():
        if chips == 1 < FEWEST[model]:
            with pytest.raises(UserError, match="40 of the model's 40 query heads.* more chips"):
                map_step(mesh_device, config, PERFORMANCE, 32)
        # of columns that are no whole tiles a chip, ttnn's reduce-scatter is many operations (0.5B, 8 chips)
        elif chips >= FEWEST[model] and config.hidden_size % (TILE * chips) == 0:
            assert_as_planned(map_step(mesh_device, config, PERFORMANCE, 32))
            for prefix in (False, True):
                prefill = map_prefill(mesh_device, config, PERFORMANCE, MAX_PREFILL_ROWS, cached_prefix=prefix)
                assert_as_planned(prefill)


def assert_as_planned(mapped: L1Map) -> None:
    for row in mapped.rows:
        assert row.tensors <= row.planned_tensors + SEMAPHORES, f"{row.planned.op}: {row}"
        assert row.reach <= row.planned_reach, f"{row.planned.op}: {row}"

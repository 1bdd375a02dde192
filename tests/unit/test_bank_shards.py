"""Prefill reads every weight right, of every model on every machine.

ttnn's 2D multicast matmul takes ceil(tiles of N / DRAM banks) tiles for a bank's shard, as simulated chips show. The
decode matmul wants equally many for each of a bank's readers.
"""

import pytest
from qwen25_7b_lab.perf.published_models import FAMILIES, SIZES

from models.demos.qwen25_7b.config import QWEN25_7B, RECIPES, ConfigError
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.plans.machines import MACHINES
from models.demos.qwen25_7b.plans.parallel_plan import SPLITS
from tests.families import config_of, table_of

CONFIGS = SIZES | FAMILIES | {"7B": QWEN25_7B, "small": config_of("qwen2")}
ROWS = {(kind.chip, tp): kind for kind in MACHINES.values() for tp in SPLITS if kind.row % tp == 0}


@pytest.mark.parametrize("model", CONFIGS)
def test_a_banks_shard_is_what_the_library_takes_it_for(model):
    config, planned = CONFIGS[model], 0
    for chip, tp in ROWS:
        try:
            tables = [table_of(config, tp, recipe, chip) for recipe in RECIPES.values()]
        except ConfigError:  # its KV heads do not go onto so many chips
            continue
        for table in tables:
            for layer, _ in table.kinds:
                for row in layer.linears:
                    try:
                        shard = row.decode_matmul.bank_shard
                    except UserError:  # no plan fits L1
                        continue
                    quotient = -(-row.weight.shape[1] // 32 // chip.banks)
                    assert shard % chip.readers_per_bank == 0 and shard * chip.banks * 32 >= row.weight.shape[1]
                    assert row.prefill_copy == (shard != quotient), row.name
                    assert not (row.prefill_copy and row in layer.gate_up), "zero columns cost less than a copy"
                    planned += 1
    assert planned

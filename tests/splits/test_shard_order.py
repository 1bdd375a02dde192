"""The table of a model lists exactly the shards that a model builds, in the model's order. Plans count the bytes that
they take.
"""

from dataclasses import replace

import pytest
import ttnn
from qwen25_7b_lab.perf.capture import constant_shard

from models.demos.qwen25_7b.config import BF16, BFP8, PERFORMANCE
from models.demos.qwen25_7b.plans.memory_budget import weight_bytes
from models.demos.qwen25_7b.plans.model_table import ModelTable
from models.demos.qwen25_7b.plans.parallel_plan import ParallelPlan
from models.demos.qwen25_7b.plans.slices import WeightShard
from models.demos.qwen25_7b.tt.model_config import TtModelConfig
from models.demos.qwen25_7b.tt.placement import chip_of
from models.demos.qwen25_7b.tt.transformer import TtTransformer
from tests.families import cut
from tests.splits.test_fits import allocated

# The 7B's dims, with fewer layers and a smaller vocabulary.
# Joining, padding and sharding are the 7B's.
CONFIG = cut("7B", layers=2, vocab_size=33_000)
FAMILIES = {size: cut(size, layers=2, vocab_size=33_000) for size in ("Qwen3-8B", "Llama-3.1-8B")}
# A T3K's shorter rows are those of these machines.
pytestmark = pytest.mark.make_test_on("N150", "N300", "N150x4", "T3K")
CONTEXT, SPARE = 64, 10_000


# The second layer has another recipe.
MIXED = replace(PERFORMANCE, name="mixed", different=((1, BF16),))


@pytest.mark.parametrize(
    "model, recipe",
    [
        *(pytest.param(CONFIG, recipe, id=recipe.name) for recipe in (BF16, BFP8, MIXED)),
        *(pytest.param(config, BFP8, id=name) for name, config in FAMILIES.items()),
    ],
)
def test_the_table_is_what_a_model_requests(mesh_device, model, recipe, host_alone):
    plan = ParallelPlan.make(model, mesh_device.shape[1])
    requested, _ = made(mesh_device, model, recipe, host_alone)
    assert requested == ModelTable(model, plan, recipe, chip_of(mesh_device)).shards


@pytest.mark.parametrize("model", [CONFIG, *FAMILIES.values()], ids=["7B", *FAMILIES])
def test_a_layer_takes_the_planned_bytes(mesh_device, model, host_alone):
    """A bias that a plan forgets, or counts without need, is more than SPARE."""
    plan, chip = ParallelPlan.make(model, mesh_device.shape[1]), chip_of(mesh_device)
    models = [replace(model, num_hidden_layers=layers) for layers in (1, 2)]
    one, two = (made(mesh_device, m, BFP8, host_alone)[1] for m in models)
    planned = [weight_bytes(ModelTable(m, plan, BFP8, chip), CONTEXT) for m in models]
    tables = CONTEXT * plan.kv_heads * model.head_dim * 2 if model.qkv_bias else 0  # no bias here has outliers
    assert abs(planned[1] - planned[0] - tables - (two - one)) < SPARE


def made(mesh_device, model, recipe, host_alone) -> tuple[list[WeightShard], int]:
    """Make a model of zeros; return the shards that it requested, and the bytes of DRAM that a chip allocated."""
    requested, before = [], allocated(mesh_device)

    def build(shard: WeightShard) -> ttnn.Tensor:
        requested.append(shard)
        return constant_shard(shard, mesh_device, frozenset())

    with host_alone():
        config = TtModelConfig.make(mesh_device, model, recipe, min_slots=1, max_seq_len=CONTEXT)
        transformer = TtTransformer(mesh_device, build, config)
    taken = allocated(mesh_device) - before
    del transformer
    return [shard for shard in requested if shard.slice.tensors], taken

"""The table of a model lists exactly the shards that a model builds, in the model's order. Plans count the bytes that
they take.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest
import torch
import ttnn

from models.demos.qwen25_7b.config import BF16, BFP8, PERFORMANCE
from models.demos.qwen25_7b.plans.memory_budget import weight_bytes
from models.demos.qwen25_7b.plans.model_table import ModelTable
from models.demos.qwen25_7b.plans.parallel_plan import ParallelPlan
from models.demos.qwen25_7b.plans.slices import WeightShard
from models.demos.qwen25_7b.tt.model_config import TtModelConfig
from models.demos.qwen25_7b.tt.placement import chip_of
from models.demos.qwen25_7b.tt.transformer import TtTransformer
from tests.families import cut

# The 7B's dims, with fewer layers and a smaller vocabulary.
# Joining, padding and sharding are the 7B's.
CONFIG = cut("7B", layers=2, vocab_size=33_000)
FAMILIES = {size: cut(size, layers=2, vocab_size=33_000) for size in ("Qwen3-8B", "Llama-3.1-8B")}
# A T3K's shorter rows are those of these machines.
pytestmark = pytest.mark.make_test_on("N150", "N300", "N150x4", "T3K")
CONTEXT, SPARE = 64, 10_000


@dataclass
class Recorder:
    """Builds shards and records the requests. Its shards are zeros."""

    requested: list[WeightShard] = field(default_factory=list)
    made: ClassVar[dict] = {}  # one tensor of each shape and format, as values do not matter

    def build(self, shard: WeightShard) -> ttnn.Tensor:
        self.requested.append(shard)
        kind = shard.slice.shape, shard.format, shard.tiled
        if kind not in self.made:
            layout = ttnn.TILE_LAYOUT if shard.tiled else ttnn.ROW_MAJOR_LAYOUT
            zeros = torch.zeros(1, 1, *shard.slice.shape, dtype=torch.bfloat16)
            self.made[kind] = ttnn.from_torch(zeros, dtype=getattr(ttnn, shard.format), layout=layout)
        return self.made[kind]


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
    """Make a model; return the shards that it requested, and the bytes of DRAM that a chip has allocated for it."""
    recorder, before = Recorder(), allocated(mesh_device)
    with host_alone():
        config = TtModelConfig.make(mesh_device, model, recipe, min_slots=1, max_seq_len=CONTEXT)
        transformer = TtTransformer(mesh_device, recorder.build, config)
    taken = allocated(mesh_device) - before
    del transformer
    return [shard for shard in recorder.requested if shard.slice.tensors], taken


def allocated(mesh_device) -> int:
    """Bytes of a chip's DRAM that tensors take."""
    view = ttnn.get_memory_view(mesh_device, ttnn.BufferType.DRAM)
    return view.num_banks * view.total_bytes_allocated_per_bank

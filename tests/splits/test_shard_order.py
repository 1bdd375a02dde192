"""The inventory lists exactly the shards that a model builds, in the model's order."""

from dataclasses import dataclass, field, replace

import pytest
import torch
import ttnn

from models.demos.qwen25_7b.config import BF16, BFP8, PERFORMANCE
from models.demos.qwen25_7b.plans.parallel_plan import ParallelPlan
from models.demos.qwen25_7b.tt.model_config import TtModelConfig
from models.demos.qwen25_7b.tt.transformer import TtTransformer
from models.demos.qwen25_7b.weights.inventory import inventory
from models.demos.qwen25_7b.weights.model_weights import ModelWeights
from models.demos.qwen25_7b.weights.slices import WeightShard
from tests.sizes import cut

# The 7B's dims, with fewer layers and a smaller vocabulary.
# Joining, padding and sharding are the 7B's.
CONFIG = cut("7B", layers=2, vocab_size=33_000)


@dataclass
class Recorder:
    """Builds shards and records the requests. Its shards are zeros."""

    requested: list[WeightShard] = field(default_factory=list)
    made: dict = field(
        default_factory=dict
    )  # one tensor of each shape and format, as values do not matter

    def build(self, shard: WeightShard) -> ttnn.Tensor:
        self.requested.append(shard)
        kind = shard.slice.shape, shard.format, shard.tiled
        if kind not in self.made:
            layout = ttnn.TILE_LAYOUT if shard.tiled else ttnn.ROW_MAJOR_LAYOUT
            zeros = torch.zeros(1, 1, *shard.slice.shape, dtype=torch.bfloat16)
            self.made[kind] = ttnn.from_torch(
                zeros, dtype=getattr(ttnn, shard.format), layout=layout
            )
        return self.made[kind]


# The second layer has another recipe.
MIXED = replace(PERFORMANCE, name="mixed", different=((1, BF16),))


@pytest.mark.parametrize("recipe", [BF16, BFP8, MIXED], ids=lambda recipe: recipe.name)
def test_the_inventory_is_what_a_model_requests(mesh_device, recipe, host_alone):
    plan = ParallelPlan.make(CONFIG, mesh_device.shape[1])
    recorder = Recorder()
    with host_alone():
        config = TtModelConfig.make(mesh_device, CONFIG, recipe, batch=1, max_seq_len=64)
        TtTransformer(mesh_device, ModelWeights({}, CONFIG, plan, recorder.build), config)
    requested = [shard for shard in recorder.requested if shard.slice.tensors]
    assert requested == inventory(CONFIG, plan, recipe)

"""TtQwenMLP: down(silu(gate(x)) * up(x)). HF: mlp.gate_proj, mlp.up_proj, mlp.down_proj."""

import ttnn

from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
from models.demos.qwen25_7b.plans.gate_up_plan import GateUpPlan
from models.demos.qwen25_7b.plans.grids import TILE
from models.demos.qwen25_7b.plans.prefill_plan import PrefillPlan
from models.demos.qwen25_7b.tt.collectives import TtAllReduce
from models.demos.qwen25_7b.tt.gate_up import TtGateUp, TtJoinedGateUp
from models.demos.qwen25_7b.tt.linear import TtLinear
from models.demos.qwen25_7b.weights import MlpWeights


class TtQwenMLP:
    """A chip has plan.mlp columns of gate and up and the same rows of down; the all-reduce adds the chips' results."""

    def __init__(
        self,
        mesh_device: ttnn.MeshDevice,
        weights: MlpWeights,
        config: QwenConfig,
        plan: ParallelPlan,
        recipe: Recipe,
        decode: DecodePlan,
        all_reduce: TtAllReduce,
    ):
        product = GateUpPlan.make(config, plan, recipe)
        # What fills up a chip's part adds nothing: silu(0) * 0 meets zero rows of down.
        gate, up, down = (w.filled(product.tiles * TILE) for w in (weights.gate, weights.up, weights.down))
        kind = TtJoinedGateUp if product.joined else TtGateUp
        self.gate_up = kind(mesh_device, gate, up, recipe, decode)
        self.down = TtLinear(
            mesh_device,
            down,
            group=recipe.mlp_out,
            decode=decode,
            in_cores=self.gate_up.out_cores,
            out_cores=decode.residual.cores,
        )
        self.all_reduce = all_reduce

    def forward_decode(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """[1, 1, 32, hidden] on the residual cores -> the same. Frees x."""
        hidden = self.gate_up.forward_decode(x)  # [1, 1, 32, mlp]
        ttnn.deallocate(x)
        y = self.down.forward_decode(hidden, self.all_reduce.summand)  # [1, 1, 32, hidden], a summand
        ttnn.deallocate(hidden)
        return self.all_reduce.forward_decode(y)

    def forward_prefill(self, x: ttnn.Tensor, plan: PrefillPlan) -> ttnn.Tensor:
        """[1, 1, S, hidden] block-sharded in L1 -> the same. Frees x."""
        hidden = self.gate_up.forward_prefill(x, plan)  # [1, 1, S, mlp]
        y = self.down.forward_prefill(hidden, plan.down, plan.summand_memory)  # [1, 1, S, hidden], a summand
        ttnn.deallocate(hidden)
        return self.all_reduce.forward_prefill(y, plan)

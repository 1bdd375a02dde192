"""TtQwenMLP: down(silu(gate(x)) * up(x)). HF: mlp.gate_proj, mlp.up_proj, mlp.down_proj."""
import ttnn

from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.tt.collectives import TtAllReduce
from models.demos.qwen25_7b.tt.decode_plan import DecodePlan
from models.demos.qwen25_7b.tt.linear import TtLinear
from models.demos.qwen25_7b.weights import MlpWeights

SILU = [ttnn.UnaryOpType.SILU]


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
        wide = dict(dim=1, format=recipe.mlp_in, decode=decode, out_cores=decode.grid.cores)
        self.gate = TtLinear(mesh_device, weights.gate, in_cores=decode.residual.cores, **wide)
        self.up = TtLinear(mesh_device, weights.up, in_cores=decode.residual.cores, **wide)
        self.down = TtLinear(
            mesh_device,
            weights.down,
            dim=0,
            format=recipe.mlp_out,
            decode=decode,
            in_cores=self.gate.decode_plan.out_cores,
            out_cores=decode.residual.cores,
        )
        self.all_reduce = all_reduce

    def forward_decode(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """[1, 1, 32, hidden] on the residual cores -> the same."""
        gate = self.gate.forward_decode(x)  # [1, 1, 32, mlp]
        up = self.up.forward_decode(x)  # [1, 1, 32, mlp]
        hidden = ttnn.mul(gate, up, input_tensor_a_activations=SILU, memory_config=gate.memory_config())
        ttnn.deallocate(gate)
        ttnn.deallocate(up)
        y = self.down.forward_decode(hidden)  # [1, 1, 32, hidden], a summand
        ttnn.deallocate(hidden)
        return self.all_reduce.forward_decode(y)

    def forward_prefill(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """[1, 1, S, hidden] interleaved in DRAM -> the same."""
        gate = self.gate.forward_prefill(x)  # [1, 1, S, mlp]
        up = self.up.forward_prefill(x)  # [1, 1, S, mlp]
        hidden = ttnn.mul(gate, up, input_tensor_a_activations=SILU, memory_config=ttnn.DRAM_MEMORY_CONFIG)
        ttnn.deallocate(gate)
        ttnn.deallocate(up)
        y = self.down.forward_prefill(hidden)  # [1, 1, S, hidden], a summand
        ttnn.deallocate(hidden)
        return self.all_reduce.forward_prefill(y)

"""silu(gate(x)) * up(x): two matmuls as a rule, one where that leaves out enough padding. HF: mlp.gate_proj, mlp.up_proj."""

import ttnn

from models.demos.qwen25_7b.config import Recipe
from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
from models.demos.qwen25_7b.plans.gate_up_plan import HALF_CORES
from models.demos.qwen25_7b.plans.grids import TILE, most_even
from models.demos.qwen25_7b.plans.memory_configs import row_major_cores, width_sharded_over
from models.demos.qwen25_7b.plans.prefill_plan import PrefillPlan
from models.demos.qwen25_7b.tt.linear import TtLinear
from models.demos.qwen25_7b.weights import Weight

SILU = [ttnn.UnaryOpType.SILU]


class TtGateUp:
    """Two matmuls and their product. gate, up: [hidden, mlp] a chip."""

    def __init__(self, mesh_device: ttnn.MeshDevice, gate: Weight, up: Weight, recipe: Recipe, decode: DecodePlan):
        wide = dict(group=recipe.mlp_in, decode=decode, in_cores=decode.residual.cores, out_cores=decode.grid.cores)
        self.gate, self.up = TtLinear(mesh_device, gate, **wide), TtLinear(mesh_device, up, **wide)
        self.out_cores = self.gate.decode_plan.out_cores

    def forward_decode(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """[1, 1, 32, hidden] on the residual cores -> [1, 1, 32, mlp] on out_cores."""
        gate = self.gate.forward_decode(x)  # [1, 1, 32, mlp]
        up = self.up.forward_decode(x)  # [1, 1, 32, mlp]
        hidden = ttnn.mul(gate, up, input_tensor_a_activations=SILU, memory_config=gate.memory_config())
        ttnn.deallocate(gate)
        ttnn.deallocate(up)
        return hidden

    def forward_prefill(self, x: ttnn.Tensor, plan: PrefillPlan) -> ttnn.Tensor:
        """[1, 1, S, hidden] block-sharded in L1 -> [1, 1, S, mlp], block-sharded too. Frees x."""
        gate = self.gate.forward_prefill(x, plan.gate_up, plan.wide_memory)
        up = self.up.forward_prefill(x, plan.gate_up, plan.wide_memory)
        ttnn.deallocate(x)
        return _product_in_place(gate, up)


class TtJoinedGateUp:
    """One matmul whose result [gate | up] is looked at in two halves. gate, up: [hidden, columns] a chip."""

    def __init__(self, mesh_device: ttnn.MeshDevice, gate: Weight, up: Weight, recipe: Recipe, decode: DecodePlan):
        self.columns = gate.shape[1]
        self.both = TtLinear(
            mesh_device,
            gate.beside(up),  # [hidden, 2 * columns]
            group=recipe.mlp_in,
            decode=decode,
            in_cores=decode.residual.cores,
            out_cores=2 * HALF_CORES,
        )
        self.out_cores = most_even(self.columns // TILE, decode.grid.cores)
        self.memory = width_sharded_over(self.columns, row_major_cores(self.out_cores, decode.grid))

    def forward_decode(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """[1, 1, 32, hidden] on the residual cores -> [1, 1, 32, columns] on out_cores."""
        both = self.both.forward_decode(
            x
        )  # [1, 1, 32, 2 * columns], gate on the first four cores of a row, up on the last
        gate, up = (ttnn.narrow(both, -1, first, self.columns) for first in (0, self.columns))  # views
        hidden = ttnn.mul(gate, up, input_tensor_a_activations=SILU, memory_config=self.memory)
        ttnn.deallocate(both)
        return hidden

    def forward_prefill(self, x: ttnn.Tensor, plan: PrefillPlan) -> ttnn.Tensor:
        """[1, 1, S, hidden] block-sharded in L1 -> [1, 1, S, columns] interleaved in L1. Frees x."""
        both = self.both.forward_prefill(x, plan.gate_up, plan.wide_memory)  # [1, 1, S, 2 * columns]
        ttnn.deallocate(x)
        rows = both.shape[2]
        gate, up = (
            ttnn.slice(
                both,
                (0, 0, 0, first),
                (1, 1, rows, first + self.columns),
                memory_config=ttnn.L1_MEMORY_CONFIG,
            )
            for first in (0, self.columns)
        )
        ttnn.deallocate(both)
        return _product_in_place(gate, up)


def _product_in_place(gate: ttnn.Tensor, up: ttnn.Tensor) -> ttnn.Tensor:
    """silu(gate) * up in gate's memory; frees up."""
    hidden = ttnn.mul(gate, up, input_tensor_a_activations=SILU, output_tensor=gate)
    ttnn.deallocate(up)
    return hidden

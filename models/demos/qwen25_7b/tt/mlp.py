"""TtQwenMLP: down(silu(gate(x)) * up(x)). HF: mlp.gate_proj, mlp.up_proj, mlp.down_proj."""

import ttnn

from ..plans.grids import width_sharded
from ..plans.model_table import LayerSpec
from ..plans.prefill_plan import PrefillPlan
from ..weights.model_weights import BuildShard
from .linear import TtAllReduce, TtLinear
from .placement import free, memory_config

SILU = [ttnn.UnaryOpType.SILU]


class TtQwenMLP:
    """A chip holds columns of gate and up, and the rows of down for these columns. all_reduce adds the results."""

    def __init__(self, mesh_device: ttnn.MeshDevice, layer: LayerSpec, build: BuildShard, *, all_reduce: TtAllReduce):
        self.gate_up = (TtJoinedGateUp if layer.joined else TtGateUp)(mesh_device, layer, build)
        self.down = TtLinear(mesh_device, layer.down, build)
        self.all_reduce = all_reduce

    def forward_decode(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """[1, 1, 32, hidden] on the residual cores -> [1, 1, 32, hidden] on the residual cores. Frees x."""
        hidden = self.gate_up.forward_decode(x)  # [1, 1, 32, mlp]
        ttnn.deallocate(x)
        y = self.down.forward_decode(hidden, self.all_reduce.partial_sum_dtype)  # [1, 1, 32, hidden], a partial sum
        ttnn.deallocate(hidden)
        return self.all_reduce.forward_decode(y)  # [1, 1, 32, hidden]

    def forward_prefill(self, x: ttnn.Tensor, plan: PrefillPlan) -> ttnn.Tensor:
        """[1, 1, S, hidden] block-sharded in L1 -> [1, 1, S, hidden] block-sharded in L1. Frees x."""
        hidden = self.gate_up.forward_prefill(x, plan)  # [1, 1, S, mlp]
        y = self.down.forward_prefill(hidden, plan.down, plan.partial_sum_memory)  # [1, 1, S, hidden], a partial sum
        ttnn.deallocate(hidden)
        return self.all_reduce.forward_prefill(y, plan)  # [1, 1, S, hidden]


class TtGateUp:
    """silu(gate(x)) * up(x) by two matmuls."""

    def __init__(self, mesh_device: ttnn.MeshDevice, layer: LayerSpec, build: BuildShard):
        self.gate, self.up = (TtLinear(mesh_device, row, build) for row in layer.gate_up)

    def forward_decode(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """[1, 1, 32, hidden] on the residual cores -> [1, 1, 32, mlp] on the cores that down reads."""
        gate = self.gate.forward_decode(x)  # [1, 1, 32, mlp]
        up = self.up.forward_decode(x)  # [1, 1, 32, mlp]
        hidden = ttnn.mul(gate, up, input_tensor_a_activations=SILU, memory_config=gate.memory_config())
        free(gate, up)
        return hidden

    def forward_prefill(self, x: ttnn.Tensor, plan: PrefillPlan) -> ttnn.Tensor:
        """[1, 1, S, hidden] block-sharded in L1 -> [1, 1, S, mlp] block-sharded in L1. Frees x."""
        gate = self.gate.forward_prefill(x, plan.mlp_in, plan.wide_memory)  # [1, 1, S, mlp]
        up = self.up.forward_prefill(x, plan.mlp_in, plan.wide_memory)  # [1, 1, S, mlp]
        ttnn.deallocate(x)
        hidden = ttnn.mul(gate, up, input_tensor_a_activations=SILU, output_tensor=gate)
        ttnn.deallocate(up)
        return hidden


class TtJoinedGateUp:
    """silu(gate(x)) * up(x) by one matmul with the weight [gate | up]."""

    def __init__(self, mesh_device: ttnn.MeshDevice, layer: LayerSpec, build: BuildShard):
        (both,) = layer.gate_up
        self.both = TtLinear(mesh_device, both, build)  # [hidden, 2 * mlp]
        self.mlp = layer.down.weight.shape[0]
        self.memory = memory_config(width_sharded(self.mlp, layer.chip.grid, layer.down.in_cores))

    def forward_decode(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """[1, 1, 32, hidden] on the residual cores -> [1, 1, 32, mlp] on the cores that down reads."""
        both = self.both.forward_decode(x)  # [1, 1, 32, 2 * mlp], each half on four cores of a row
        gate = ttnn.narrow(both, -1, 0, self.mlp)  # a view
        up = ttnn.narrow(both, -1, self.mlp, self.mlp)  # a view
        hidden = ttnn.mul(gate, up, input_tensor_a_activations=SILU, memory_config=self.memory)
        ttnn.deallocate(both)
        return hidden

    def forward_prefill(self, x: ttnn.Tensor, plan: PrefillPlan) -> ttnn.Tensor:
        """[1, 1, S, hidden] block-sharded in L1 -> [1, 1, S, mlp] interleaved in L1. Frees x."""
        both = self.both.forward_prefill(x, plan.mlp_in, plan.wide_memory)  # [1, 1, S, 2 * mlp]
        ttnn.deallocate(x)
        rows, mlp, l1 = both.shape[2], self.mlp, ttnn.L1_MEMORY_CONFIG
        gate = ttnn.slice(both, (0, 0, 0, 0), (1, 1, rows, mlp), memory_config=l1)
        up = ttnn.slice(both, (0, 0, 0, mlp), (1, 1, rows, 2 * mlp), memory_config=l1)
        ttnn.deallocate(both)
        hidden = ttnn.mul(gate, up, input_tensor_a_activations=SILU, output_tensor=gate)
        ttnn.deallocate(up)
        return hidden

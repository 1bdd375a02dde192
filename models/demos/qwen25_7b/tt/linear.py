"""TtLinear: a projection. All that a matmul needs (placement, plan, fidelity) is in this room."""

from typing import Optional

import torch
import ttnn

from models.demos.qwen25_7b.plans.decode_matmul import plan_decode
from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
from models.demos.qwen25_7b.plans.grids import TILE, ceil_div
from models.demos.qwen25_7b.plans.memory_configs import dram_width_sharded
from models.demos.qwen25_7b.plans.prefill_matmul import PrefillMatmul
from models.demos.qwen25_7b.tt.placement import chips_in_row, dtype_of, shard

# The multiplier takes operands apart and makes a pass for each pair of parts (tech_reports/matrix_engine). HiFi3 leaves out
# the product of the lowest parts alone: 3e-5 of a result. HiFi2 and LoFi cut an activation to 7 significant bits, which
# shrinks every result by 0.28 %; LoFi cuts a weight to 5 besides, of which bfloat4_b has no more than 3.
# HiFi4 with sums in float32 is not used: on Wormhole single results come out wrong by a power of two (tt-metal issue 38306).
FIDELITY = {
    "bfloat16": ttnn.MathFidelity.HiFi3,
    "bfloat8_b": ttnn.MathFidelity.HiFi3,
    "bfloat4_b": ttnn.MathFidelity.LoFi,
}


def compute_config(fidelity: ttnn.MathFidelity = ttnn.MathFidelity.HiFi3) -> ttnn.WormholeComputeKernelConfig:
    """Sums in float32: the model's sums are 3584 to 18944 long."""
    return ttnn.WormholeComputeKernelConfig(
        math_fidelity=fidelity, math_approx_mode=False, fp32_dest_acc_en=True, packer_l1_acc=True
    )


class TtLinear:
    """y = x @ weight (+ bias), each chip with its own block of the weight.

    weight: torch [in, out] in mesh order; `dim` is the one that the chips share out (1: columns, so y is split; 0: rows,
    so every chip's y is a summand). bias: torch [1, out], with dim 1. format: the recipe's name for the weight's format.
    in_cores: cores that hold x in decode; out_cores: at most so many take y; head_dim: where heads may not be cut by a
    core's border.
    """

    def __init__(
        self,
        mesh_device: ttnn.MeshDevice,
        weight: torch.Tensor,
        *,
        dim: int,
        format: str,
        decode: DecodePlan,
        in_cores: int,
        out_cores: int,
        bias: Optional[torch.Tensor] = None,
        head_dim: int = 0,
    ):
        tp = chips_in_row(mesh_device)
        rows, columns = (extent // tp if i == dim else extent for i, extent in enumerate(weight.shape))
        self.kernel = compute_config(FIDELITY[format])
        self.decode_plan = plan_decode(
            ceil_div(rows, TILE),
            ceil_div(columns, TILE),
            in_cores,
            format,
            out_cores=out_cores,
            divides=head_dim // TILE,
        )
        self.decode_config = self.decode_plan.program_config()
        self.weight = shard(
            weight[None, None], mesh_device, dim + 2, dtype_of(format), dram_width_sharded(mesh_device, rows, columns)
        )
        # Both modes' kernels read the bias bank by bank as they read the weight; an interleaved one gives wrong values.
        self.bias = None
        if bias is not None:
            banks = dram_width_sharded(mesh_device, TILE, columns)
            self.bias = shard(bias[None, None], mesh_device, 3, ttnn.bfloat16, banks)

    def forward_decode(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """[1, 1, 32, in] width-sharded in L1 -> [1, 1, 32, out] bfloat16, width-sharded in L1."""
        return ttnn.linear(
            x,
            self.weight,
            bias=self.bias,
            program_config=self.decode_config,
            memory_config=ttnn.L1_WIDTH_SHARDED_MEMORY_CONFIG,
            dtype=ttnn.bfloat16,
            compute_kernel_config=self.kernel,
        )

    def forward_prefill(self, x: ttnn.Tensor, plan: PrefillMatmul, memory: ttnn.MemoryConfig) -> ttnn.Tensor:
        """[1, 1, S, in] in L1 -> [1, 1, S, out] bfloat16 in `memory`, where the plan has them."""
        return ttnn.linear(
            x,
            self.weight,
            bias=self.bias,
            program_config=plan.program_config(),
            memory_config=memory,
            dtype=ttnn.bfloat16,
            compute_kernel_config=self.kernel,
        )

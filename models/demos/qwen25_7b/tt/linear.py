"""TtLinear: a projection. All that a matmul needs (placement, plan, fidelity) is in this room."""

from typing import Optional

import ttnn

from models.demos.qwen25_7b.config.recipe import Fidelity, Group
from models.demos.qwen25_7b.plans.decode_matmul import plan_decode
from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
from models.demos.qwen25_7b.plans.grids import TILE, ceil_div
from models.demos.qwen25_7b.plans.memory_configs import dram_width_sharded
from models.demos.qwen25_7b.plans.prefill_matmul import PrefillMatmul
from models.demos.qwen25_7b.tt.placement import place
from models.demos.qwen25_7b.weights import Weight


def compute_config(fidelity: Fidelity = "HiFi3") -> ttnn.WormholeComputeKernelConfig:
    """Sums in float32: the model's sums are 3584 to 18944 long."""
    return ttnn.WormholeComputeKernelConfig(
        math_fidelity=getattr(ttnn.MathFidelity, fidelity),
        math_approx_mode=False,
        fp32_dest_acc_en=True,
        packer_l1_acc=True,
    )


class TtLinear:
    """y = x @ weight (+ bias), each chip with its own block of the weight.

    weight: [in, out] a chip; where the chips share out its columns, y is split, where its rows, every chip's y is a
    summand. bias: [1, out], where columns are shared out. group: the recipe's, for the weight's format and fidelity.
    in_cores: cores that hold x in decode; out_cores: at most so many take y; head_dim: where heads may not be cut by a
    core's border.
    """

    def __init__(
        self,
        mesh_device: ttnn.MeshDevice,
        weight: Weight,
        *,
        group: Group,
        decode: DecodePlan,
        in_cores: int,
        out_cores: int,
        bias: Optional[Weight] = None,
        head_dim: int = 0,
    ):
        rows, columns = weight.shape
        self.kernel = compute_config(group.math_fidelity)
        self.decode_plan = plan_decode(
            ceil_div(rows, TILE),
            ceil_div(columns, TILE),
            in_cores,
            group.format,
            out_cores=out_cores,
            divides=head_dim // TILE,
        )
        self.decode_config = self.decode_plan.program_config()
        self.weight = place(weight, mesh_device, group.format, dram_width_sharded(mesh_device, rows, columns))
        # Both modes' kernels read the bias bank by bank as they read the weight; an interleaved one gives wrong values.
        self.bias = None
        if bias is not None:
            banks = dram_width_sharded(mesh_device, TILE, columns)
            self.bias = place(bias, mesh_device, "bfloat16", banks)

    def forward_decode(self, x: ttnn.Tensor, dtype: ttnn.DataType = ttnn.bfloat16) -> ttnn.Tensor:
        """[1, 1, 32, in] width-sharded in L1 -> [1, 1, 32, out] of dtype, width-sharded in L1."""
        return ttnn.linear(
            x,
            self.weight,
            bias=self.bias,
            program_config=self.decode_config,
            memory_config=ttnn.L1_WIDTH_SHARDED_MEMORY_CONFIG,
            dtype=dtype,
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

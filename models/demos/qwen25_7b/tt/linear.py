"""TtLinear: a projection with its weight, its program configs and its math fidelity."""

from typing import Optional

import ttnn

from models.demos.qwen25_7b.config.recipe import Fidelity, Group
from models.demos.qwen25_7b.plans.decode_plan import plan_decode_matmul
from models.demos.qwen25_7b.plans.grids import TILE, ceil_div, dram_width_sharded
from models.demos.qwen25_7b.plans.prefill_plan import PrefillMatmul
from models.demos.qwen25_7b.tt.placement import place
from models.demos.qwen25_7b.weights import Weight


def compute_config(fidelity: Fidelity = "HiFi3") -> ttnn.WormholeComputeKernelConfig:
    """Accumulation in float32: the model sums 3584 to 18944 products."""
    return ttnn.WormholeComputeKernelConfig(
        math_fidelity=getattr(ttnn.MathFidelity, fidelity),
        math_approx_mode=False,
        fp32_dest_acc_en=True,
        packer_l1_acc=True,
    )


class TtLinear:
    """y = x @ weight (+ bias), each chip with its shard of the weight.

    Shards of columns give each chip its columns of y. Shards of rows give each chip a partial sum of y.

    - weight: [in, out] a chip.
    - bias: [1, out], for shards of columns.
    - group: the weight's format and fidelity.
    - in_cores: cores that hold x in decode.
    - out_cores: the most cores that may hold y in decode.
    - head_dim: columns that must lie on one core; 0 for none.
    """

    def __init__(
        self,
        mesh_device: ttnn.MeshDevice,
        weight: Weight,
        *,
        group: Group,
        in_cores: int,
        out_cores: int,
        bias: Optional[Weight] = None,
        head_dim: int = 0,
    ):
        rows, columns = weight.shape
        self.kernel = compute_config(group.math_fidelity)
        self.decode_matmul = plan_decode_matmul(
            ceil_div(rows, TILE),
            ceil_div(columns, TILE),
            in_cores,
            group.format,
            out_cores=out_cores,
            divides=head_dim // TILE,
        )
        self.decode_program = self.decode_matmul.program_config()
        banks = dram_width_sharded(mesh_device, rows, columns)
        self.weight = place(weight, mesh_device, group.format, banks)
        # The kernels of both modes read the bias bank by bank; an interleaved bias gives wrong values.
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
            program_config=self.decode_program,
            memory_config=ttnn.L1_WIDTH_SHARDED_MEMORY_CONFIG,
            dtype=dtype,
            compute_kernel_config=self.kernel,
        )

    def forward_prefill(
        self, x: ttnn.Tensor, matmul: PrefillMatmul, memory: ttnn.MemoryConfig
    ) -> ttnn.Tensor:
        """[1, 1, S, in] in L1 -> [1, 1, S, out] bfloat16 in `memory`. matmul: the plan for x and `memory`."""
        return ttnn.linear(
            x,
            self.weight,
            bias=self.bias,
            program_config=matmul.program_config(),
            memory_config=memory,
            dtype=ttnn.bfloat16,
            compute_kernel_config=self.kernel,
        )

"""TtRMSNorm: y = x / sqrt(mean(x^2) + eps) * weight. HF: input_layernorm, post_attention_layernorm, norm."""

import ttnn

from models.demos.qwen25_7b.config import QwenConfig
from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
from models.demos.qwen25_7b.plans.grids import TILE
from models.demos.qwen25_7b.plans.prefill_plan import PrefillPlan
from models.demos.qwen25_7b.tt.linear import compute_config
from models.demos.qwen25_7b.tt.placement import place
from models.demos.qwen25_7b.weights import Weight


class TtRMSNorm:
    """Every chip norms the whole residual stream. weight: [hidden / 32, 32]."""

    def __init__(self, mesh_device: ttnn.MeshDevice, weight: Weight, config: QwenConfig, decode: DecodePlan):
        self.epsilon = config.rms_norm_eps
        self.kernel = compute_config()
        self.weight = place(weight, mesh_device, tiled=False)
        tiles = config.hidden_size // TILE // decode.residual.cores
        self.memory = decode.residual_memory
        self.program = ttnn.LayerNormShardedMultiCoreProgramConfig(
            compute_with_storage_grid_size=(decode.residual.x, decode.residual.y),
            subblock_w=max(w for w in (1, 2, 3, 4) if tiles % w == 0),  # dest holds 4 tiles with fp32 accumulation
            block_h=1,
            block_w=tiles,
            inplace=False,
        )

    def forward_decode(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """[1, 1, 32, hidden] on the residual cores -> the same."""
        return ttnn.rms_norm(
            x,
            weight=self.weight,
            epsilon=self.epsilon,
            program_config=self.program,
            memory_config=self.memory,
            compute_kernel_config=self.kernel,
        )

    def forward_prefill(self, x: ttnn.Tensor, plan: PrefillPlan) -> ttnn.Tensor:
        """[1, 1, S, hidden] block-sharded in L1 -> the same."""
        return ttnn.rms_norm(
            x,
            weight=self.weight,
            epsilon=self.epsilon,
            program_config=plan.norm_program(),
            memory_config=plan.residual_memory,
            compute_kernel_config=self.kernel,
        )

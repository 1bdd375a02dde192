"""TtDecoderLayer: h = x + attention(norm(x)); y = h + mlp(norm(h)). HF: model.layers.N."""

import ttnn

from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
from models.demos.qwen25_7b.tt.attention import TtQwenAttention
from models.demos.qwen25_7b.tt.mlp import TtQwenMLP
from models.demos.qwen25_7b.tt.rms_norm import TtRMSNorm
from models.demos.qwen25_7b.tt.rotary import Rotation


class TtDecoderLayer:
    def __init__(
        self,
        input_norm: TtRMSNorm,
        attention: TtQwenAttention,
        post_attention_norm: TtRMSNorm,
        mlp: TtQwenMLP,
        decode: DecodePlan,
    ):
        self.input_norm, self.attention = input_norm, attention
        self.post_attention_norm, self.mlp = post_attention_norm, mlp
        self.memory = decode.residual_memory

    def forward_decode(
        self, x: ttnn.Tensor, rotation: Rotation, positions: ttnn.Tensor, page_table: ttnn.Tensor
    ) -> ttnn.Tensor:
        """[1, 1, 32, hidden] on the residual cores -> the same. Frees x."""
        normed = self.input_norm.forward_decode(x)
        y = self.attention.forward_decode(normed, rotation, positions, page_table)
        ttnn.deallocate(normed)
        h = self._add(x, y, self.memory)
        normed = self.post_attention_norm.forward_decode(h)
        y = self.mlp.forward_decode(normed)
        ttnn.deallocate(normed)
        return self._add(h, y, self.memory)

    def forward_prefill(self, x: ttnn.Tensor, rotation: Rotation, page_table: ttnn.Tensor) -> ttnn.Tensor:
        """[1, 1, S, hidden] interleaved in DRAM -> the same. Frees x."""
        normed = self.input_norm.forward_prefill(x)
        y = self.attention.forward_prefill(normed, rotation, page_table)
        ttnn.deallocate(normed)
        h = self._add(x, y, ttnn.DRAM_MEMORY_CONFIG)
        normed = self.post_attention_norm.forward_prefill(h)
        y = self.mlp.forward_prefill(normed)
        ttnn.deallocate(normed)
        return self._add(h, y, ttnn.DRAM_MEMORY_CONFIG)

    @staticmethod
    def _add(residual: ttnn.Tensor, update: ttnn.Tensor, memory: ttnn.MemoryConfig) -> ttnn.Tensor:
        """The sum; both summands are used up."""
        total = ttnn.add(residual, update, memory_config=memory)
        ttnn.deallocate(residual)
        ttnn.deallocate(update)
        return total

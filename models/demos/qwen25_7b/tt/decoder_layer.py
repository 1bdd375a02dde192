"""TtDecoderLayer: h = x + attention(norm(x)); y = h + mlp(norm(h)). HF: model.layers.N."""

import ttnn

from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
from models.demos.qwen25_7b.plans.prefill_plan import PrefillPlan
from models.demos.qwen25_7b.tt.attention import TtQwenAttention
from models.demos.qwen25_7b.tt.inputs import ContinuedInputs, DecodeInputs, PromptInputs, VerifyInputs
from models.demos.qwen25_7b.tt.kv_cache import TtKVCache
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
        self, x: ttnn.Tensor, rotation: Rotation, inputs: DecodeInputs | VerifyInputs, cache: TtKVCache
    ) -> ttnn.Tensor:
        """[1, 1, 32, hidden] on the residual cores -> the same. Frees x."""
        y = self.attention.forward_decode(self.input_norm.forward_decode(x), rotation, inputs, cache)
        h = self._add(x, y, self.memory)
        y = self.mlp.forward_decode(self.post_attention_norm.forward_decode(h))
        return self._add(h, y, self.memory)

    def forward_prefill(
        self, x: ttnn.Tensor, rotation: Rotation, inputs: PromptInputs, cache: TtKVCache, plan: PrefillPlan
    ) -> ttnn.Tensor:
        """[1, 1, S, hidden] block-sharded in L1 -> the same. Frees x."""
        y = self.attention.forward_prefill(self.input_norm.forward_prefill(x, plan), rotation, inputs, cache, plan)
        return self._prefill_rest(x, y, plan)

    def forward_continued(
        self, x: ttnn.Tensor, rotation: Rotation, inputs: ContinuedInputs, cache: TtKVCache, plan: PrefillPlan
    ) -> ttnn.Tensor:
        """The same for a piece of a text whose beginning the cache holds."""
        y = self.attention.forward_continued(self.input_norm.forward_prefill(x, plan), rotation, inputs, cache, plan)
        return self._prefill_rest(x, y, plan)

    def _prefill_rest(self, x: ttnn.Tensor, y: ttnn.Tensor, plan: PrefillPlan) -> ttnn.Tensor:
        h = self._add(x, y, plan.residual_memory)
        y = self.mlp.forward_prefill(self.post_attention_norm.forward_prefill(h, plan), plan)
        return self._add(h, y, plan.residual_memory)

    @staticmethod
    def _add(residual: ttnn.Tensor, update: ttnn.Tensor, memory: ttnn.MemoryConfig) -> ttnn.Tensor:
        """The sum; both summands are used up."""
        total = ttnn.add(residual, update, memory_config=memory)
        ttnn.deallocate(residual)
        ttnn.deallocate(update)
        return total

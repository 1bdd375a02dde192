"""TtEmbedding: token ids to rows of the table. HF: model.embed_tokens."""

import ttnn

from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
from models.demos.qwen25_7b.plans.prefill_plan import PrefillPlan
from models.demos.qwen25_7b.tt.placement import place
from models.demos.qwen25_7b.weights import Weight


class TtEmbedding:
    """The whole table on every chip, bfloat16, row-major (a row is one read). weight: [vocab, hidden]."""

    def __init__(self, mesh_device: ttnn.MeshDevice, weight: Weight, decode: DecodePlan):
        self.memory = decode.residual_memory
        self.weight = place(weight, mesh_device, tiled=False)

    def forward_decode(self, tokens: ttnn.Tensor) -> ttnn.Tensor:
        """[1, 1, 1, 32] uint32 -> [1, 1, 32, hidden] on the residual cores."""
        x = ttnn.embedding(tokens, self.weight, layout=ttnn.TILE_LAYOUT, memory_config=self.memory)
        return ttnn.unsqueeze_to_4D(x)

    def forward_prefill(self, tokens: ttnn.Tensor, plan: PrefillPlan) -> ttnn.Tensor:
        """[1, 1, 1, S] uint32 -> [1, 1, S, hidden] block-sharded in L1."""
        x = ttnn.embedding(tokens, self.weight, layout=ttnn.TILE_LAYOUT, memory_config=plan.residual_memory)
        return ttnn.unsqueeze_to_4D(x)

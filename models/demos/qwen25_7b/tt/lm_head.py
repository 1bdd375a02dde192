"""TtLMHead: logits of one tile row of tokens. HF: lm_head."""

import torch
import ttnn

from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
from models.demos.qwen25_7b.plans.grids import TILE
from models.demos.qwen25_7b.plans.lm_head_plan import pieces_of
from models.demos.qwen25_7b.tt.linear import TtLinear

PADDING_LOGIT = -1e30


class TtLMHead:
    """A chip has plan.vocab columns; a matmul over all of them would not fit L1, so they come in pieces.

    weight: torch [hidden, tp * vocab] in mesh order. Columns past the model's vocabulary are padding, which a bias makes
    so low that no sampler takes them.
    """

    def __init__(
        self,
        mesh_device: ttnn.MeshDevice,
        weight: torch.Tensor,
        config: QwenConfig,
        plan: ParallelPlan,
        recipe: Recipe,
        decode: DecodePlan,
    ):
        pieces = pieces_of(plan.vocab // TILE, recipe.lm_head)
        shape = (plan.tp, pieces, plan.vocab // pieces)
        of_chips = weight.unflatten(1, shape)  # [hidden, tp, pieces, columns]
        padded = plan.tp * plan.vocab > config.vocab_size
        bias = torch.zeros(1, plan.tp * plan.vocab)
        bias[:, config.vocab_size :] = PADDING_LOGIT
        bias = bias.unflatten(1, shape)
        self.pieces = [
            TtLinear(
                mesh_device,
                of_chips[:, :, i].flatten(1),
                bias=bias[:, :, i].flatten(1) if padded else None,
                dim=1,
                format=recipe.lm_head,
                decode=decode,
                in_cores=decode.residual.cores,
                out_cores=decode.grid.cores,
            )
            for i in range(pieces)
        ]

    def forward(self, x: ttnn.Tensor) -> list[ttnn.Tensor]:
        """[1, 1, 32, hidden] on the residual cores -> pieces [1, 1, 32, columns] bfloat16, interleaved in DRAM.

        Side by side, a chip's pieces are its plan.vocab columns. In DRAM, so that L1 need not hold them all, and they can be
        read after the sampler is through with them.
        """
        logits = []
        for piece in self.pieces:
            sharded = piece.forward_decode(x)
            logits.append(ttnn.sharded_to_interleaved(sharded, ttnn.DRAM_MEMORY_CONFIG))
            ttnn.deallocate(sharded)
        return logits

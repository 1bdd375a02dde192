"""TtLMHead: logits of one tile row of tokens. HF: lm_head."""

import ttnn

from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
from models.demos.qwen25_7b.plans.lm_head_plan import column_pieces
from models.demos.qwen25_7b.tt.linear import TtLinear
from models.demos.qwen25_7b.weights import Constant, Projection, Taken, Weight

PADDING_LOGIT = -1e30


class TtLMHead:
    """A chip has plan.vocab columns; a matmul over all of them would not fit L1, so they come in pieces (plans/lm_head_plan.py).

    weight: [hidden, vocab] a chip. Columns past the model's vocabulary are padding, which a bias makes
    so low that no sampler takes them.
    """

    def __init__(
        self,
        mesh_device: ttnn.MeshDevice,
        weight: Weight,
        config: QwenConfig,
        plan: ParallelPlan,
        recipe: Recipe,
        decode: DecodePlan,
    ):
        bias = padding_bias(weight) if plan.tp * plan.vocab > config.vocab_size else None
        self.pieces = [
            TtLinear(
                mesh_device,
                weight.narrow(first, columns),
                bias=bias and bias.narrow(first, columns),
                group=recipe.lm_head,
                decode=decode,
                in_cores=decode.residual.cores,
                out_cores=decode.grid.cores,
            )
            for first, columns in column_pieces(plan.vocab, recipe.lm_head.format)
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


def padding_bias(weight: Weight) -> Weight:
    """[1, vocab] a chip: 0 for the vocabulary's columns, PADDING_LOGIT for what follows them."""

    def of(part: Projection) -> Projection:
        values = [0.0 if isinstance(block, Taken) else PADDING_LOGIT for block in part.blocks]
        return Projection(0, tuple(Constant(b.count, value) for b, value in zip(part.blocks, values)), other=1)

    return Weight(weight.pieces, tuple(map(of, weight.parts)))

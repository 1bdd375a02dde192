"""TtLMHead: logits of one tile row of tokens. HF: lm_head."""
import torch
import ttnn

from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.tt.decode_plan import DecodePlan
from models.demos.qwen25_7b.tt.grids import TILE, divisors
from models.demos.qwen25_7b.tt.linear import TtLinear
from models.demos.qwen25_7b.tt.matmul_plans import DECODE_L1, decode_l1_bytes


def pieces_of(vocab_tiles: int, format: str) -> int:
    """Into how many equal pieces a chip's columns are cut so that each one's matmul fits L1."""
    return next(n for n in divisors(vocab_tiles) if decode_l1_bytes(vocab_tiles // n, 1, format) <= DECODE_L1)


class TtLMHead:
    """A chip has plan.vocab columns; a matmul over all of them would not fit L1, so they come in pieces.

    weight: torch [hidden, tp * vocab] in mesh order. Columns past the model's vocabulary are padding with logit 0:
    whoever reads the logits keeps the first vocab_size.
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
        of_chips = weight.unflatten(1, (plan.tp, pieces, plan.vocab // pieces))  # [hidden, tp, pieces, columns]
        self.pieces = [
            TtLinear(
                mesh_device,
                of_chips[:, :, i].flatten(1),
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

        Side by side, a chip's pieces are its plan.vocab columns.
        """
        logits = []
        for piece in self.pieces:
            sharded = piece.forward_decode(x)
            logits.append(ttnn.sharded_to_interleaved(sharded, ttnn.DRAM_MEMORY_CONFIG))
            ttnn.deallocate(sharded)
        return logits

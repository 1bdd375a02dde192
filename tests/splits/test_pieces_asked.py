"""The inventory is what a model asks for: every piece, in its order, and nothing else."""

from dataclasses import dataclass, field, replace

import pytest
import torch
import ttnn

from models.demos.qwen25_7b.config import BF16, BFP8, PERFORMANCE, QWEN25_7B, ParallelPlan
from models.demos.qwen25_7b.loading.inventory import inventory
from models.demos.qwen25_7b.tt.transformer import TtTransformer
from models.demos.qwen25_7b.weights import ModelWeights, Piece

# The 7B's dims, but for its numbers of layers and words: what is joined, filled up or cut in pieces is as it is there.
CONFIG = replace(QWEN25_7B, num_hidden_layers=2, vocab_size=33_000, bos_token_id=None, eos_token_ids=())


@dataclass
class Recorder:
    """A PieceSource that has no bytes and remembers what it was asked for."""

    asked: list[Piece] = field(default_factory=list)
    made: dict = field(default_factory=dict)  # one tensor of each shape and format: no value matters

    def host(self, piece: Piece) -> ttnn.Tensor:
        self.asked.append(piece)
        kind = piece.part.shape, piece.format, piece.tiled
        if kind not in self.made:
            layout = ttnn.TILE_LAYOUT if piece.tiled else ttnn.ROW_MAJOR_LAYOUT
            zeros = torch.zeros(1, 1, *piece.part.shape, dtype=torch.bfloat16)
            self.made[kind] = ttnn.from_torch(zeros, dtype=getattr(ttnn, piece.format), layout=layout)
        return self.made[kind]


# Its second layer follows another.
MIXED = replace(PERFORMANCE, name="mixed", different=((1, BF16),))


@pytest.mark.parametrize("recipe", [BF16, BFP8, MIXED], ids=lambda recipe: recipe.name)
def test_the_inventory_is_what_a_model_asks_for(mesh_device, recipe, host_alone):
    plan = ParallelPlan.make(CONFIG, mesh_device.shape[1])
    recorder = Recorder()
    with host_alone():
        TtTransformer(
            mesh_device, ModelWeights({}, CONFIG, plan, recorder), CONFIG, plan, recipe, batch=1, max_seq_len=64
        )
    asked = [piece for piece in recorder.asked if piece.part.tensors]
    assert asked == inventory(CONFIG, plan, recipe)

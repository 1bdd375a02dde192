"""All pieces of a model in the order in which its modules ask for them, so that they can be made ready ahead.

A piece that is missing here would still be made, when it is asked for; tests/splits/test_pieces_asked.py finds it.
"""

from typing import Iterator

from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.loading.stream import Ordered
from models.demos.qwen25_7b.plans.gate_up_plan import GateUpPlan
from models.demos.qwen25_7b.plans.grids import TILE, TILE_BYTES, ceil_div
from models.demos.qwen25_7b.plans.lm_head_plan import column_pieces
from models.demos.qwen25_7b.weights import ModelWeights, Piece, Projection, Weight

BF16 = "bfloat16"


class _Nothing:
    """A PieceSource for who only wants to know which pieces there are."""

    def host(self, piece: Piece):
        raise AssertionError("an inventory has no tensors")


def inventory(config: QwenConfig, plan: ParallelPlan, recipe: Recipe) -> list[Piece]:
    """In order, each piece once, however many chips hold it. What is padding alone is left out: it is made in no time.

    UserError: the recipe has layers that the model has not.
    """
    pieces = (piece for weight in _weights(config, plan, recipe) for piece in weight)
    return list(dict.fromkeys(piece for piece in pieces if piece.part.tensors))


def _weights(config: QwenConfig, plan: ParallelPlan, recipe: Recipe) -> Iterator[list[Piece]]:
    recipe.check_layers(config.num_hidden_layers)
    weights = ModelWeights({}, config, plan, _Nothing())
    yield weights.embedding.pieces_as(BF16, tiled=False)
    for i in range(config.num_hidden_layers):
        layer, followed = weights.layer(i), recipe.of_layer(i)
        product = GateUpPlan.make(config, plan, followed)
        yield layer.input_norm.pieces_as(BF16, tiled=False)
        yield layer.attention.qkv.pieces_as(followed.attention.format, tiled=True)
        yield layer.attention.qkv_bias.pieces_as(BF16, tiled=True)
        yield layer.attention.o.pieces_as(followed.attention.format, tiled=True)
        yield layer.post_attention_norm.pieces_as(BF16, tiled=False)
        gate, up, down = (w.filled(product.tiles * TILE) for w in (layer.mlp.gate, layer.mlp.up, layer.mlp.down))
        for weight in [gate.beside(up)] if product.joined else [gate, up]:
            yield weight.pieces_as(followed.mlp_in.format, tiled=True)
        yield down.pieces_as(followed.mlp_out.format, tiled=True)
    yield weights.final_norm.pieces_as(BF16, tiled=False)
    yield from _lm_head(weights.lm_head, plan, recipe)


def _lm_head(weight: Weight, plan: ParallelPlan, recipe: Recipe) -> Iterator[list[Piece]]:
    for first, columns in column_pieces(plan.vocab, recipe.lm_head.format):
        yield weight.narrow(first, columns).pieces_as(recipe.lm_head.format, tiled=True)


def piece_bytes(piece: Piece) -> int:
    """In a chip's DRAM, without what fills up its banks."""
    rows, columns = piece.part.shape
    if not piece.tiled:
        return rows * columns * 2  # bfloat16: block floats are tiled
    return ceil_div(rows, TILE) * ceil_div(columns, TILE) * TILE_BYTES[piece.format]


def ordered(piece: Piece, element_bytes: int) -> Ordered:
    """The piece and what it weighs. element_bytes: of the checkpoint's tensors.

    Measured with [3584, 18944]: a projection is transposed into a copy, and packed through float32 to a block float.
    """
    rows, columns = piece.part.shape
    copy = element_bytes if isinstance(piece.part, Projection) else 0
    packing = 2 if piece.format == BF16 else 4
    return Ordered(piece, piece_bytes(piece), rows * columns * (copy + packing))

"""All weight shards of a model, in the order in which its modules read them, and their sizes.

tests/splits/test_shard_order.py finds a shard that is missing here.
"""

from typing import Iterator

from ..config import QwenConfig, Recipe
from ..plans.chip import Chip
from ..plans.decode_plan import GateUpLayout, lm_head_shards
from ..plans.grids import TILE, TILE_BYTES, ceil_div
from ..plans.parallel_plan import ParallelPlan
from .model_weights import ModelWeights
from .slices import Projection, WeightShard

BF16 = "bfloat16"
WIDEST_BYTES = 4  # of an element of a checkpoint


def inventory(config: QwenConfig, parallel: ParallelPlan, recipe: Recipe, chip: Chip) -> list[WeightShard]:
    """Return the shards in order. Each is listed once, also where several chips hold it.

    Shards of padding alone are left out, because they take no time to build.
    UserError: the recipe has layers that the model has not.
    """
    recipe.check_layers(config.num_hidden_layers)
    lists = _shards_of_weights(ModelWeights({}, config, parallel), recipe, chip)
    shards = (shard for weight_shards in lists for shard in weight_shards)
    return list(dict.fromkeys(shard for shard in shards if shard.slice.tensors))


def _shards_of_weights(weights: ModelWeights, recipe: Recipe, chip: Chip) -> Iterator[list[WeightShard]]:
    config, parallel = weights.config, weights.parallel
    yield weights.embedding.shards(BF16, tiled=False)
    for i in range(config.num_hidden_layers):
        layer, layer_recipe = weights.layer(i), recipe.of_layer(i)
        layout = GateUpLayout.make(config, parallel, layer_recipe, chip)
        yield layer.input_norm.shards(BF16, tiled=False)
        yield layer.attention.qkv.shards(layer_recipe.attention.format, tiled=True)
        if layer.attention.qkv_bias:
            yield layer.attention.qkv_bias.shards(BF16, tiled=True)
        for norm in filter(None, (layer.attention.q_norm, layer.attention.k_norm)):
            yield norm.shards(BF16, tiled=False)
        if layer.attention.centered_bias:
            yield layer.attention.centered_bias.shards(BF16, tiled=False)
        yield layer.attention.o.shards(layer_recipe.attention.format, tiled=True)
        yield layer.post_attention_norm.shards(BF16, tiled=False)
        mlp = layer.mlp
        gate, up, down = (w.padded(layout.tiles * TILE) for w in (mlp.gate, mlp.up, mlp.down))
        for weight in [gate.concat(up)] if layout.joined else [gate, up]:
            yield weight.shards(layer_recipe.mlp_in.format, tiled=True)
        yield down.shards(layer_recipe.mlp_out.format, tiled=True)
    yield weights.final_norm.shards(BF16, tiled=False)
    for first, columns in lm_head_shards(parallel.vocab, recipe.lm_head.format, chip):
        yield weights.lm_head.narrow(first, columns).shards(recipe.lm_head.format, tiled=True)


def shard_bytes(shard: WeightShard) -> int:
    """Return the bytes in a chip's DRAM, without the padding of its banks."""
    rows, columns = shard.slice.shape
    if not shard.tiled:
        return rows * columns * 2  # bfloat16, since block floats are tiled
    return ceil_div(rows, TILE) * ceil_div(columns, TILE) * TILE_BYTES[shard.format]


def working_bytes(shard: WeightShard) -> int:
    """Return the most host memory that packing takes, beside the checkpoint's mapped files.

    Measured with [3584, 18944]: a projection is transposed into a copy, and packed through float32 to a block float.
    """
    rows, columns = shard.slice.shape
    copy = WIDEST_BYTES if isinstance(shard.slice, Projection) else 0
    packing = 2 if shard.format == BF16 else 4
    return rows * columns * (copy + packing)

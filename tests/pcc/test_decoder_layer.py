"""TtDecoderLayer equals Hugging Face's Qwen2DecoderLayer: the residual stream, and what the layer adds to it."""
from functools import lru_cache

import pytest
import torch

from models.demos.qwen25_7b.config import BF16, BFP8
from models.demos.qwen25_7b.reference.hf import residual_stream
from models.demos.qwen25_7b.tt.decode_plan import MAX_USERS
from models.demos.qwen25_7b.tt.decoder_layer import TtDecoderLayer
from models.demos.qwen25_7b.tt.mlp import TtQwenMLP
from models.demos.qwen25_7b.tt.rms_norm import TtRMSNorm
from tests.pcc.attention_world import AttentionWorld, mixed
from tests.pcc.bench import assert_module

PCC = {BF16: 0.99, BFP8: 0.99}
CACHE_PCC = 0.99


class LayerWorld(AttentionWorld):
    """Whole layers around the world's attention modules."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        mlp_sum = self.all_reduce()
        self.layers = {i: self._layer(i, attention, mlp_sum) for i, attention in self.attention.items()}

    def _layer(self, i, attention, mlp_sum):
        def norm(weight):
            return TtRMSNorm(self.mesh_device, weight, self.config, self.decode)

        mlp = TtQwenMLP(
            self.mesh_device, self.weights.mlp(i), self.config, self.plan, self.recipe, self.decode, all_reduce=mlp_sum
        )
        before, between = norm(self.weights.input_norm(i)), norm(self.weights.post_attention_norm(i))
        return TtDecoderLayer(before, attention, between, mlp, self.decode)


@pytest.fixture(scope="module", params=PCC, ids=lambda recipe: recipe.name)
def recipe(request):
    return request.param


@pytest.fixture(scope="module")
def world_of(mesh_device, reference, recipe):
    """world_of(batch), each made once."""
    return lru_cache(lambda batch: LayerWorld(mesh_device, reference, recipe, batch=batch))


def assert_layer(chips, x, expected, pcc):
    """The residual stream's loud channels drown what a layer adds: that must be right by itself, too."""
    assert_module(chips, expected, pcc=pcc)
    assert_module([chip - x for chip in chips], expected - x, pcc=pcc)


def test_decode_of_32_users(world_of, recipe):
    world, positions = world_of(MAX_USERS), mixed(MAX_USERS)
    for i, layer in world.layers.items():
        x = residual_stream(world.config, MAX_USERS)
        histories = world.histories(i, positions)
        world.cache.fill(histories)
        chips = world.run_decode(layer, x, positions)

        expected, written = zip(*(world.reference.decoder_layer(i, x[[u]], past) for u, past in enumerate(histories)))
        assert_layer(chips, x, torch.cat(expected), PCC[recipe])
        world.cache.assert_wrote(list(zip(range(MAX_USERS), positions, written)), pcc=CACHE_PCC)


@pytest.mark.parametrize("tokens", (32, 128))
def test_prefill_of_a_prompt(world_of, recipe, tokens):
    world, user = world_of(MAX_USERS), 5
    for i, layer in world.layers.items():
        x = residual_stream(world.config, tokens)
        world.cache.fill([])
        chips = world.run_prefill(layer, x, user)

        expected, written = world.reference.decoder_layer(i, x)
        assert_layer(chips, x, expected, PCC[recipe])
        world.cache.assert_wrote([(user, 0, written)], pcc=CACHE_PCC)

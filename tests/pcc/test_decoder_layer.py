"""TtDecoderLayer equals Hugging Face's Qwen2DecoderLayer: the residual stream and its change."""

import pytest

from models.demos.qwen25_7b.config import BF16, BFP8, PERFORMANCE
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS
from models.demos.qwen25_7b.tt.transformer import TtDecoderLayer
from tests.pcc.bench import AttentionBench, assert_mlp, mixed, newest, usual_gain

pytestmark = pytest.mark.decoder_layer
PCC = {BF16: 0.998, BFP8: 0.998, PERFORMANCE: 0.998}
CACHE_PCC = {BF16: 0.9999, BFP8: 0.998, PERFORMANCE: 0.998}


class LayerBench(AttentionBench):
    """An AttentionBench of whole layers."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        config, mlp_sum = self.model_config(self.recipe), self.all_reduce(self.recipe)
        layers, attention_sum = list(self.attention), self.attention[0].all_reduce
        self.attention.clear()  # the layers have their own
        self.layers = {
            i: TtDecoderLayer(
                self.mesh_device, config.layer(i), self.build, config, self.rotary, attention_sum, mlp_sum
            )
            for i in layers
        }


@pytest.fixture(scope="module", params=PCC, ids=lambda recipe: recipe.name)
def recipe(request):
    return request.param


@pytest.fixture(scope="module")
def world_of(mesh_device, reference):
    """world_of(recipe, users): a LayerBench."""
    return newest(LayerBench, mesh_device, reference)


def assert_layer(chips, recipe, case, gain=None):
    """Compare the residual stream, and the layer's change alone. Outlier channels would hide it."""
    # One token's scale is that of one channel, with 93 % of its square, which two additions round by up to 2**-9 each.
    whole = usual_gain(len(chips)) + (2**-8 if len(case.x) == 1 else 0)
    assert_mlp(chips, recipe, case.expected, case.in_format, pcc=PCC[recipe], gain=whole)
    added = [chip - case.x for chip in chips]
    assert_mlp(added, recipe, case.expected - case.x, case.in_format - case.x, pcc=PCC[recipe], gain=gain)


@pytest.mark.users(MAX_USERS)
def test_decode_of_users_at_different_positions(world_of, recipe, users):
    world, positions = world_of(recipe, users), mixed(users)
    for i, layer in world.layers.items():
        case = world.reference.layer_step(i, positions)
        world.cache.fill(case.past)
        chips = world.run_decode(layer, case.x, positions)
        assert_layer(chips, recipe, case, gain=world.decode_gain)
        world.cache.assert_wrote(range(users), positions, case.written, pcc=CACHE_PCC[recipe])


@pytest.mark.parametrize("tokens", (pytest.param(32, marks=pytest.mark.one_tile), 128))
def test_prefill_of_a_prompt(world_of, recipe, tokens, user=5):
    world = world_of(recipe, MAX_USERS)
    for i, layer in world.layers.items():
        case = world.reference.layer_prompt(i, tokens)
        world.cache.fill([])
        (chips,) = world.run_prompts(layer, [case.x], [user])
        assert_layer(chips, recipe, case)
        world.cache.assert_wrote([user], [0], case.written, pcc=CACHE_PCC[recipe], to_the_end=True)

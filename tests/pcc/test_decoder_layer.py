"""TtDecoderLayer equals Hugging Face's Qwen2DecoderLayer: the residual stream and its change."""

import pytest

from models.demos.qwen25_7b.config import BF16, BFP8, PERFORMANCE
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS
from models.demos.qwen25_7b.tt.transformer import TtDecoderLayer
from tests.pcc.bench import AttentionBench, assert_mlp, mixed, newest, usual_gain
from tests.pcc.reference import whole

pytestmark = pytest.mark.decoder_layer
PCC = 0.998


class LayerBench(AttentionBench):
    """An AttentionBench of whole layers."""

    part = staticmethod(whole)

    def make_modules(self):
        device, config = self.mesh_device, self.on_chips
        sums = [self.all_reduce(self.recipe) for _ in range(2)]
        layers = self.reference.layers
        return {i: TtDecoderLayer(device, config.layer(i), self.build, config, self.rotary, *sums) for i in layers}


@pytest.fixture(scope="module", params=(BF16, BFP8, PERFORMANCE), ids=lambda recipe: recipe.name)
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
    assert_mlp(chips, recipe, case.expected, case.in_format, pcc=PCC, gain=whole)
    added = [chip - case.x for chip in chips]
    assert_mlp(added, recipe, case.expected - case.x, case.in_format - case.x, pcc=PCC, gain=gain)


@pytest.mark.users(MAX_USERS)
def test_decode_of_users_at_different_positions(world_of, recipe, users):
    world = world_of(recipe, users)
    for i in world.modules:
        case, chips = world.step(i, mixed(users))
        assert_layer(chips, recipe, case, gain=world.decode_gain)


@pytest.mark.parametrize("tokens", (pytest.param(32, marks=pytest.mark.one_tile), 128))
def test_prefill_of_a_prompt(world_of, recipe, tokens, user=5):
    world = world_of(recipe, MAX_USERS)
    for i in world.modules:
        ((case, chips),) = world.prefill(i, [user], [tokens])
        assert_layer(chips, recipe, case)

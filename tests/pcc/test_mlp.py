"""TtQwenMLP equals Hugging Face's Qwen2MLP in each layer."""

import pytest

from models.demos.qwen25_7b.config import BF16, BFP8, PERFORMANCE
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS
from models.demos.qwen25_7b.tt.mlp import TtQwenMLP
from tests.pcc.bench import assert_mlp
from tests.pcc.reference import bf16, residual_stream

PCC = {BF16: 0.9999, BFP8: 0.999, PERFORMANCE: 0.999}


@pytest.fixture(scope="module", params=PCC, ids=lambda recipe: recipe.name)
def recipe(request):
    return request.param


@pytest.fixture(scope="module")
def mlps(bench, reference, recipe):
    """Layer number -> TtQwenMLP."""
    config, all_reduce = bench.model_config(recipe), bench.all_reduce(recipe)
    return {
        i: TtQwenMLP(bench.mesh_device, config.layer(i), bench.build, all_reduce=all_reduce) for i in reference.layers
    }


@pytest.mark.parametrize("tokens", (0, 32, 128))
def test_a_step_of_32_users_or_a_prefill(bench, reference, recipe, mlps, tokens):
    plan = bench.prefill_plan(tokens, recipe) if tokens else None
    for i, mlp in mlps.items():
        norm, stream = reference.layer(i).post_attention_layernorm, residual_stream(bench.config, tokens or MAX_USERS)
        x = bf16(norm(stream))
        expected, in_format = (layer.mlp(x) for layer in (reference.layer(i), reference.rounded(i, recipe)))
        assert_mlp(bench.run(mlp, x, plan), recipe, expected, in_format, pcc=PCC[recipe])

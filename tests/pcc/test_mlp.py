"""TtQwenMLP equals Hugging Face's Qwen2MLP in each layer."""

import pytest

from models.demos.qwen25_7b.config import BF16, BFP8, PERFORMANCE
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS
from models.demos.qwen25_7b.tt.mlp import TtQwenMLP
from models.demos.qwen25_7b.tt.placement import memory_config
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


def given(reference, i, *shape):
    """Return inputs of layer i's MLP, [*shape, hidden]."""
    return bf16(reference.layer(i).post_attention_layernorm(residual_stream(reference.config, *shape)))


def assert_right(chips, reference, recipe, i, x):
    expected, in_format = (layer.mlp(x) for layer in reference.kept_in(recipe).both(i))
    assert_mlp(chips, recipe, expected, in_format, pcc=PCC[recipe])


def test_decode_of_32_users(bench, reference, recipe, mlps):
    for i, mlp in mlps.items():
        x = given(reference, i, MAX_USERS)
        y = mlp.forward_decode(bench.put_users(x))
        assert y.memory_config() == memory_config(bench.decode.residual_memory)
        assert_right(bench.take_rows(y, MAX_USERS), reference, recipe, i, x)


@pytest.mark.parametrize("tokens", (32, 128))
def test_prefill_of_a_prompt(bench, reference, recipe, mlps, tokens):
    for i, mlp in mlps.items():
        x = given(reference, i, tokens)
        plan = bench.prefill_plan(tokens, recipe)
        y = mlp.forward_prefill(bench.put_tokens(x, plan), plan)
        assert y.memory_config() == memory_config(plan.residual_memory)
        assert_right(bench.take_rows(y, tokens), reference, recipe, i, x)

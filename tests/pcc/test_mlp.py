"""TtQwenMLP equals Hugging Face's Qwen2MLP in each layer."""

import pytest

from models.demos.qwen25_7b.config import BF16, BFP8, PERFORMANCE
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS
from models.demos.qwen25_7b.reference.hf import random_weights
from models.demos.qwen25_7b.tt.mlp import TtQwenMLP
from tests.families import cut
from tests.pcc.bench import Bench, assert_mlp
from tests.pcc.reference import Reference, bf16, residual_stream

PCC = {BF16: 0.9999, BFP8: 0.999, PERFORMANCE: 0.999}


@pytest.mark.parametrize("recipe", PCC, ids=lambda recipe: recipe.name)
def test_a_step_of_32_users_and_prefills(bench, recipe):
    for i in bench.reference.layers:
        assert_hugging_faces(bench, recipe, i)


def assert_hugging_faces(bench, recipe, i):
    reference, layer = bench.reference, bench.model_config(recipe).layer(i)
    mlp = TtQwenMLP(bench.mesh_device, layer, bench.build, all_reduce=bench.all_reduce(recipe))
    for tokens in (0, 32, 128):  # of a prefill; 0: a step
        x = bf16(reference.layer(i).post_attention_layernorm(residual_stream(bench.config, tokens or MAX_USERS)))
        expected, in_format = (part.mlp(x) for part in (reference.layer(i), reference.rounded(i, recipe)))
        chips = bench.run(mlp, x, bench.prefill_plan(tokens, recipe) if tokens else None)
        assert_mlp(chips, recipe, expected, in_format, pcc=PCC[recipe])


@pytest.mark.chips(8)
def test_the_7bs_joined_gate_and_up(mesh_device):
    """At tp 8 they are one matmul, here with formats of 4 and 8 bits."""
    config = cut("7B", layers=1, vocab_size=1024)
    bench = Bench(mesh_device, Reference.of(config, random_weights(config)))
    assert bench.model_config(PERFORMANCE).layer(0).joined
    assert_hugging_faces(bench, PERFORMANCE, 0)

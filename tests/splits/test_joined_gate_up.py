"""At tp 8 the 7B's gate and up are one matmul. The MLP still equals Hugging Face's."""

from dataclasses import replace
from typing import Mapping, NamedTuple

import pytest
import torch

from models.demos.qwen25_7b.config import (
    BFP8,
    MAX_USERS,
    PERFORMANCE,
    QWEN25_7B,
    ParallelPlan,
    QwenConfig,
)
from models.demos.qwen25_7b.plans.decode_plan import GateUpLayout
from models.demos.qwen25_7b.tt.mlp import TtQwenMLP
from models.demos.qwen25_7b.reference.hf import hf_model, random_weights, residual_stream
from tests.pcc.bench import Bench, assert_mlp
from tests.pcc.reference import rounded_layer

CONFIG = replace(
    QWEN25_7B, num_hidden_layers=1, vocab_size=1024, bos_token_id=None, eos_token_ids=()
)


class Reference(NamedTuple):
    config: QwenConfig
    weights: Mapping[str, torch.Tensor]


@pytest.fixture(scope="module")
def weights():
    return random_weights(CONFIG)


@pytest.fixture(scope="module")
def layer(weights):
    return hf_model(CONFIG, weights).model.layers[0]


@pytest.mark.parametrize("recipe", (BFP8, PERFORMANCE), ids=lambda recipe: recipe.name)
@torch.no_grad()
def test_the_7bs_mlp_equals_hugging_faces_where_gate_and_up_are_joined(mesh_device, recipe, request):
    plan = ParallelPlan.make(CONFIG, mesh_device.shape[1])
    joined = GateUpLayout.make(CONFIG, plan, recipe).joined
    assert joined == (plan.tp == 8)
    if not joined:
        return  # tests/pcc tests separate gate and up
    weights = request.getfixturevalue("weights")
    bench = Bench(mesh_device, Reference(CONFIG, weights))
    ours = TtQwenMLP(
        mesh_device,
        bench.weights.mlp(0),
        bench.model_config(recipe),
        all_reduce=bench.all_reduce(recipe),
    )
    layer = request.getfixturevalue("layer")
    formats = recipe.attention.format, recipe.mlp_in.format, recipe.mlp_out.format
    in_format = rounded_layer(layer, CONFIG.centering_rope(0), *formats)

    def assert_right(y, x):
        assert_mlp(bench.take_rows(y, len(x)), recipe, layer.mlp(x), in_format.mlp(x), pcc=0.999)

    x = residual_stream(CONFIG, MAX_USERS).bfloat16().float()
    assert_right(ours.forward_decode(bench.put_users(x)), x)
    x = residual_stream(CONFIG, 128, seed=1).bfloat16().float()
    prefill = bench.prefill_plan(128, recipe)
    assert_right(ours.forward_prefill(bench.put_tokens(x, prefill), prefill), x)

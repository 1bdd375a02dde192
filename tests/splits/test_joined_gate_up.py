"""At tp 8 the 7B's gate and up are one matmul. The MLP still equals Hugging Face's."""

import pytest
import torch

from models.demos.qwen25_7b.config import PERFORMANCE
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS
from models.demos.qwen25_7b.reference.hf import random_weights
from models.demos.qwen25_7b.tt.mlp import TtQwenMLP
from tests.families import cut, hf_model
from tests.pcc.bench import Bench, assert_mlp
from tests.pcc.reference import Reference, bf16, residual_stream

CONFIG = cut("7B", layers=1, vocab_size=1024)


@pytest.fixture(scope="module")
def reference() -> Reference:
    weights = random_weights(CONFIG)
    return Reference(CONFIG, weights, hf_model(CONFIG, weights), range(1))


@pytest.mark.chips(8)  # tests/pcc tests separate gate and up
@torch.no_grad()
def test_the_7bs_mlp_equals_hugging_faces_where_gate_and_up_are_joined(mesh_device, reference):
    recipe = PERFORMANCE  # formats of 4 and 8 bits
    bench, layer = Bench(mesh_device, reference), reference.layer(0)
    planned = bench.model_config(recipe).layer(0)
    assert planned.joined
    ours = TtQwenMLP(mesh_device, planned, bench.build, all_reduce=bench.all_reduce(recipe))
    for tokens in (0, 128):
        x = bf16(residual_stream(CONFIG, tokens or MAX_USERS))
        expected, in_format = (part.mlp(x) for part in (layer, reference.rounded(0, recipe)))
        plan = bench.prefill_plan(tokens, recipe) if tokens else None
        assert_mlp(bench.run(ours, x, plan), recipe, expected, in_format, pcc=0.999)

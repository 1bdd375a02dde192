"""TtRMSNorm equals Hugging Face's Qwen2RMSNorm: each layer's norms and the final norm."""

import pytest
import torch

from models.demos.qwen25_7b.config import BFP8
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS
from models.demos.qwen25_7b.tt.transformer import TtRMSNorm
from tests.pcc.bench import assert_module, evened
from tests.pcc.reference import bf16, residual_stream

PCC = 0.99998


@pytest.fixture(scope="module")
def norms(bench, reference):
    """(TtRMSNorm, Hugging Face's module) of every norm."""
    config, hf = bench.model_config(BFP8), reference.model.model
    pairs = [(config.final_norm, hf.norm)]
    for i in reference.layers:
        layer, theirs = config.layer(i), hf.layers[i]
        pairs += [(layer.input_norm, theirs.input_layernorm)]
        pairs += [(layer.post_attention_norm, theirs.post_attention_layernorm)]
    return [(TtRMSNorm(bench.mesh_device, weight, bench.build, config), theirs) for weight, theirs in pairs]


@pytest.mark.parametrize("tokens", (0, 32, 256))
def test_a_step_of_32_users_or_a_prefill(bench, norms, tokens):
    """Each channel is also compared at its own scale: outliers would hide others. In small rows epsilon matters."""
    count, plan = tokens or MAX_USERS, bench.prefill_plan(tokens, BFP8) if tokens else None
    x = bf16(residual_stream(bench.config, count) * torch.logspace(-4, 0, count)[:, None])
    for ours, theirs in norms:
        chips, expected = bench.run(ours, x, plan), theirs(x)
        assert_module(chips, expected, pcc=PCC)
        assert_module([evened(chip, expected) for chip in chips], evened(expected, expected), pcc=PCC)

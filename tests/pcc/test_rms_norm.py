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


def some_rows(config, count):
    """Return residual streams [count, hidden]. The first are so small that epsilon matters."""
    return bf16(residual_stream(config, count) * torch.logspace(-4, 0, count)[:, None])


def assert_every_channel(chips, expected):
    """Compare the result, and each channel at its own scale. Outliers would hide other channels."""
    assert_module(chips, expected, pcc=PCC)
    assert_module([evened(chip, expected) for chip in chips], evened(expected, expected), pcc=PCC)


def test_decode_normalizes_each_user(bench, norms):
    x = some_rows(bench.config, MAX_USERS)
    for ours, theirs in norms:
        y = ours.forward_decode(bench.put_users(x))
        assert_every_channel(bench.take_rows(y, MAX_USERS), theirs(x))


@pytest.mark.parametrize("tokens", (32, 256))
def test_prefill_normalizes_each_token(bench, norms, tokens):
    x = some_rows(bench.config, tokens)
    plan = bench.prefill_plan(tokens, BFP8)
    for ours, theirs in norms:
        y = ours.forward_prefill(bench.put_tokens(x, plan), plan)
        assert_every_channel(bench.take_rows(y, tokens), theirs(x))

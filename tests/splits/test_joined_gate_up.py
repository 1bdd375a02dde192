"""At tp 8 the 7B's gate and up are one matmul: the MLP is Hugging Face's all the same, and a chip's halves are its own."""

from dataclasses import replace

import pytest
import torch

from models.demos.qwen25_7b.config import BFP8, QWEN25_7B
from models.demos.qwen25_7b.reference.hf import hf_model, random_weights, residual_stream
from models.demos.qwen25_7b.tt.collectives import TtAllReduce
from models.demos.qwen25_7b.tt.decode_plan import MAX_USERS
from models.demos.qwen25_7b.tt.gate_up import TtJoinedGateUp
from models.demos.qwen25_7b.tt.mlp import TtQwenMLP
from tests.pcc.bench import Bench, assert_module


@pytest.fixture
def world(mesh_device):
    """(bench, our MLP, Hugging Face's) of one layer of the 7B's dims."""
    config = replace(QWEN25_7B, num_hidden_layers=1, vocab_size=1024, bos_token_id=None, eos_token_ids=())
    weights = random_weights(config)

    class Reference:
        pass

    reference = Reference()
    reference.config, reference.weights = config, weights
    bench = Bench(mesh_device, reference)
    mlp = TtQwenMLP(
        mesh_device,
        bench.weights.mlp(0),
        config,
        bench.plan,
        BFP8,
        bench.decode,
        TtAllReduce(mesh_device, bench.decode),
    )
    return bench, mlp, hf_model(config, weights).model.layers[0].mlp


@torch.no_grad()
def test_the_joined_mlp_is_hugging_faces(world):
    bench, mlp, theirs = world
    if bench.plan.tp != 8:
        assert not isinstance(mlp.gate_up, TtJoinedGateUp)
        return
    assert isinstance(mlp.gate_up, TtJoinedGateUp)
    x = residual_stream(bench.config, MAX_USERS).bfloat16().float()
    assert_module(bench.take_rows(mlp.forward_decode(bench.put_users(x)), MAX_USERS), theirs(x), pcc=0.999)
    x = residual_stream(bench.config, 128, seed=1).bfloat16().float()
    assert_module(bench.take_rows(mlp.forward_prefill(bench.put_tokens(x)), 128), theirs(x), pcc=0.999)

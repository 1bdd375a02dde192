"""At tp 8 the 7B's gate and up are one matmul: the MLP is Hugging Face's all the same, and a chip's halves are its own."""

from dataclasses import replace
from typing import Mapping, NamedTuple

import torch

from models.demos.qwen25_7b.config import BFP8, MAX_USERS, QWEN25_7B, ParallelPlan, QwenConfig
from models.demos.qwen25_7b.plans.gate_up_plan import GateUpPlan
from models.demos.qwen25_7b.reference.hf import hf_model, random_weights, residual_stream
from models.demos.qwen25_7b.tt.collectives import TtAllReduce
from models.demos.qwen25_7b.tt.mlp import TtQwenMLP
from tests.pcc.bench import Bench, assert_module

CONFIG = replace(QWEN25_7B, num_hidden_layers=1, vocab_size=1024, bos_token_id=None, eos_token_ids=())


class Reference(NamedTuple):
    config: QwenConfig
    weights: Mapping[str, torch.Tensor]


@torch.no_grad()
def test_the_7bs_mlp_is_hugging_faces_where_gate_and_up_are_one(mesh_device):
    plan = ParallelPlan.make(CONFIG, mesh_device.shape[1])
    joined = GateUpPlan.make(CONFIG, plan, BFP8).joined
    assert joined == (plan.tp == 8)
    if not joined:
        return  # tests/pcc has the others
    weights = random_weights(CONFIG)
    bench = Bench(mesh_device, Reference(CONFIG, weights))
    sum_up = TtAllReduce(mesh_device, bench.decode)
    ours = TtQwenMLP(mesh_device, bench.weights.mlp(0), CONFIG, plan, BFP8, bench.decode, sum_up)
    theirs = hf_model(CONFIG, weights).model.layers[0].mlp
    x = residual_stream(CONFIG, MAX_USERS).bfloat16().float()
    assert_module(bench.take_rows(ours.forward_decode(bench.put_users(x)), MAX_USERS), theirs(x), pcc=0.999)
    x = residual_stream(CONFIG, 128, seed=1).bfloat16().float()
    prefill = bench.prefill_plan(128, BFP8)
    assert_module(
        bench.take_rows(ours.forward_prefill(bench.put_tokens(x, prefill), prefill), 128), theirs(x), pcc=0.999
    )

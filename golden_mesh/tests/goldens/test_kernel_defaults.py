"""An op without a compute_kernel_config takes the default that ttnn reports for the op."""

import re

import pytest
import torch
import ttnn

from golden_mesh.arithmetic.kernel import PHASES, Kernel

BF16, F32, BFP8, BFP4 = ttnn.bfloat16, ttnn.float32, ttnn.bfloat8_b, ttnn.bfloat4_b


def linear(chips, first, second, **options):
    x, w = chips.put(torch.randn(1, 1, 32, 64), first), chips.put(torch.randn(1, 1, 64, 32), second)
    return lambda: ttnn.linear(x, w, **options)


def of_one(chips, name, dtype=BF16, **options):
    x = chips.put(torch.randn(1, 1, 32, 64), dtype)
    return lambda: getattr(ttnn, name)(x, **options)


def rotary(chips):
    x, table, matrix = (
        chips.put(torch.randn(s)) for s in ((1, 2, 32, 64), (1, 1, 32, 64), (1, 1, 32, 32))
    )
    return lambda: ttnn.experimental.rotary_embedding_llama(
        x, table, table, matrix, is_decode_mode=False
    )


def minimal_matmul(chips):
    x, w = chips.put(torch.randn(1, 1, 32, 64)), chips.put(torch.randn(1, 1, 64, 32))
    return lambda: ttnn.experimental.minimal_matmul(x, w)


def prefill(chips):
    q = chips.put(torch.randn(1, 2, 32, 64))
    return lambda: ttnn.transformer.scaled_dot_product_attention(q, q, q)


def decode(chips):
    q, cache = chips.put(torch.randn(1, 8, 4, 64)), chips.put(torch.randn(8, 1, 32, 64))
    table, at = chips.put_ints(torch.arange(8)[:, None]), chips.put_ints(torch.full((8,), 5))
    return lambda: ttnn.transformer.paged_scaled_dot_product_attention_decode(
        q, cache, cache, table, cur_pos_tensor=at
    )


CALLS = {
    "linear": lambda chips: linear(chips, BF16, BF16),
    "linear of a bfloat8_b weight": lambda chips: linear(chips, BF16, BFP8),
    "linear of two bfloat8_b": lambda chips: linear(chips, BFP8, BFP8),
    "linear of bfloat8_b and bfloat4_b": lambda chips: linear(chips, BFP8, BFP4),
    "linear of bfloat8_b and bfloat16": lambda chips: linear(chips, BFP8, BF16),
    "linear of two float32": lambda chips: linear(chips, F32, F32),
    "linear of float32 and bfloat16": lambda chips: linear(chips, F32, BF16),
    "linear of bfloat16 and float32": lambda chips: linear(chips, BF16, F32),
    "linear to float32": lambda chips: linear(chips, BF16, BF16, dtype=F32),
    "linear on a grid of one's own": lambda chips: linear(
        chips, BF16, BF16, core_grid=ttnn.CoreGrid(y=1, x=1)
    ),
    "minimal_matmul": minimal_matmul,
    "rms_norm": lambda chips: of_one(chips, "rms_norm"),
    "layer_norm": lambda chips: of_one(chips, "layer_norm"),
    "rms_norm_pre_all_gather": lambda chips: of_one(chips, "rms_norm_pre_all_gather"),
    "softmax": lambda chips: of_one(chips, "softmax", dim=-1),
    "softmax of float32": lambda chips: of_one(chips, "softmax", F32, dim=-1),
    "rotary": rotary,
    "prefill attention": prefill,
    "decode attention": decode,
}


@pytest.mark.parametrize("name", CALLS)
def test_the_default_is_ttnns(chips, monkeypatch, name):
    call, taken, of = CALLS[name](chips), [], Kernel.of

    def remember(*args, **options):
        taken.append(of(*args, **options))
        return taken[-1]

    monkeypatch.setattr(Kernel, "of", staticmethod(remember))
    ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NORMAL)
    call()
    text = str(ttnn.graph.end_graph_capture())
    config = dict(re.findall(r"(\w+)=(\w+)", re.search(r"ComputeKernelConfig\((.*?)\)", text)[1]))
    assert {kernel.phases for kernel in taken} == {PHASES[config["math_fidelity"]]}
    assert {kernel.wide for kernel in taken} == {config["fp32_dest_acc_en"] == "1"}
    if name.startswith("softmax"):  # math_approx_mode chooses the exp of softmax alone
        assert {kernel.approximate for kernel in taken} == {config["math_approx_mode"] == "1"}

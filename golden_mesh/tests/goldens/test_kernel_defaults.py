"""An op without a compute_kernel_config takes the default that ttnn reports for the op."""

import re

import pytest
import torch
import ttnn

from golden_mesh.arithmetic.kernel import PHASES, Kernel
from goldens.support import Put, ints

X, W = (1, 1, 32, 64), (1, 1, 64, 32)
CACHE = (8, 1, 32, 64)
BF16, F32, BFP8, BFP4 = ttnn.bfloat16, ttnn.float32, ttnn.bfloat8_b, ttnn.bfloat4_b
# The call after "ttnn." of a, b, c and d, and these tensors.
CALLS = {
    "minimal_matmul": ("experimental.minimal_matmul(a, b)", X, W),
    "rms_norm": ("rms_norm(a)", X),
    "layer_norm": ("layer_norm(a)", X),
    "rms_norm_pre_all_gather": ("rms_norm_pre_all_gather(a)", X),
    "softmax": ("softmax(a, dim=-1)", X),
    "softmax of float32": ("softmax(a, dim=-1)", Put(X, F32)),
    "rotary": (
        "experimental.rotary_embedding_llama(a, b, b, c, is_decode_mode=False)",
        *((1, 2, 32, 64), X, (1, 1, 32, 32)),
    ),
    "prefill attention": ("transformer.scaled_dot_product_attention(a, a, a)", (1, 2, 32, 64)),
    "decode attention": (
        "transformer.paged_scaled_dot_product_attention_decode(a, b, b, c, cur_pos_tensor=d)",
        *((1, 8, 4, 64), CACHE, ints(torch.arange(8)[:, None]), ints([5] * 8)),
    ),
    "linear to float32": ("linear(a, b, dtype=ttnn.float32)", X, W),
    "linear on a grid of one's own": ("linear(a, b, core_grid=ttnn.CoreGrid(y=1, x=1))", X, W),
}
for first, second in (
    *((BF16, BF16), (BF16, BFP8), (BFP8, BFP8), (BFP8, BFP4)),
    *((BFP8, BF16), (F32, F32), (F32, BF16), (BF16, F32)),
):
    name = f"linear of {first.name} and {second.name}"
    CALLS[name] = "linear(a, b)", Put(X, first), Put(W, second)


@pytest.mark.parametrize("name", CALLS)
def test_the_default_is_ttnns(chips, monkeypatch, name):
    (call, *inputs), taken, of = CALLS[name], [], Kernel.of
    tensors = dict(zip("abcd", map(chips.put_input, inputs)))

    def remember(*args, **options):
        taken.append(of(*args, **options))
        return taken[-1]

    monkeypatch.setattr(Kernel, "of", staticmethod(remember))
    ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NORMAL)
    eval(f"ttnn.{call}", {"ttnn": ttnn}, tensors)
    text = str(ttnn.graph.end_graph_capture())
    config = dict(re.findall(r"(\w+)=(\w+)", re.search(r"ComputeKernelConfig\((.*?)\)", text)[1]))
    assert {kernel.phases for kernel in taken} == {PHASES[config["math_fidelity"]]}
    assert {kernel.wide for kernel in taken} == {config["fp32_dest_acc_en"] == "1"}
    if name.startswith("softmax"):  # math_approx_mode chooses the exp of softmax alone
        assert {kernel.approximate for kernel in taken} == {config["math_approx_mode"] == "1"}

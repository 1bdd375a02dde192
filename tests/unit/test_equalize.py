"""Outlier rotary pairs of K are scaled down to OUTLIER_NORM. An 8-bit cache then keeps other pairs.

The tests in test_transforms.py show that attention does not change, at every tp and any position.
"""

from dataclasses import replace

import pytest
import torch
from golden_mesh.rounding import round_to, to_block_float

from models.demos.qwen25_7b.config import QWEN25_7B
from models.demos.qwen25_7b.plans.rotary_pairs import key_divisors, to_half_split, to_interleaved
from models.demos.qwen25_7b.plans.slices import HeadNorm
from models.demos.qwen25_7b.reference.hf import random_weights
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint

SEVEN_B = replace(QWEN25_7B, hidden_size=64, num_hidden_layers=1, vocab_size=64, intermediate_size=32,
                  bos_token_id=None, eos_token_ids=())  # fmt: skip
TOKENS = 256


def small(layer):
    checkpoint = Checkpoint.open(SMALL_CHECKPOINT)
    return checkpoint.tensor(f"model.layers.{layer}.self_attn.k_proj.bias"), checkpoint.config


def seven_b():
    return random_weights(SEVEN_B)["model.layers.0.self_attn.k_proj.bias"], SEVEN_B


BIASES = {"small layer 0": lambda: small(0), "small layer 3": lambda: small(3), "7B": seven_b}


@pytest.mark.parametrize("name", BIASES)
def test_an_8_bit_cache_keeps_the_neighbors_of_outlier_pairs(name):
    """The error of attention is less than half of the error without scaling.

    Keys are random around the bias, rotated, in Hugging Face's half-split order.
    """
    bias, config = BIASES[name]()
    heads = bias.view(-1, config.head_dim)
    divisors = torch.stack([key_divisors(head, None) for head in heads])[:, None]
    generator = torch.Generator().manual_seed(0)
    shape = config.num_key_value_heads, TOKENS, config.head_dim
    query, key, value = (torch.randn(shape, generator=generator) for _ in "qkv")
    key = rotated(key + bias.float().view(-1, 1, config.head_dim), config.rope_theta)
    query = rotated(query, config.rope_theta)

    def error(divisors):
        cached = to_half_split(to_block_float(to_interleaved(key / divisors), bits=7).float())
        return (attention(query * divisors, cached, value) - exact).norm() / exact.norm()

    exact = attention(query, key, value)
    with_them, without = error(divisors), error(torch.ones(1))
    assert with_them < 0.5 * without, f"error {with_them:.4f}, without {without:.4f}"


def attention(query, key, value):
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def rotated(x, theta):
    """Rotate x [heads, tokens, head_dim] in Hugging Face's order, token t at position t."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[1])[:, None] * theta ** -(torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1)


def test_outliers_of_a_head_norm_leave_an_8_bit_cache_its_bits():
    """Both norms change by powers of two, so that every score stays as it is."""
    norms = {"k": torch.rand(128).add(0.5).bfloat16(), "q": torch.rand(128).add(0.5).bfloat16()}
    norms["k"][[3, 40, 100]] *= 64
    read = {f"{name}_norm": norm for name, norm in norms.items()}.__getitem__
    q, k = (HeadNorm(f"{name}_norm", "k_norm", 128).read(read).flatten() for name in "qk")
    assert (q * k).equal(to_interleaved(norms["q"]) * to_interleaved(norms["k"]))
    plain = to_interleaved(norms["k"]) < 2
    keys, errors = torch.randn(64, 128), []
    for norm in (k, to_interleaved(norms["k"])):
        exact = keys * norm.float()
        off = (round_to(exact.bfloat16(), "bfloat8_b").float() - exact)[:, plain]
        errors.append(float(off.norm() / exact[:, plain].norm()))
    assert errors[0] < 0.015 < 0.05 < errors[1]

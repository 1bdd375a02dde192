"""Loud rotary pairs of K are divided down to LOUDEST, and an 8-bit cache keeps what they would wipe out.

That attention stays what it is, at every tp and any position, is test_transforms.py's.
"""

from dataclasses import replace

import pytest
import torch

from models.common.golden_mesh.rounding import to_block_float
from models.demos.qwen25_7b.config import QWEN25_7B
from models.demos.qwen25_7b.reference.hf import random_weights
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.weights import Checkpoint, key_divisors, to_half_split, to_interleaved
from models.demos.qwen25_7b.weights.equalise import LOUDEST, matching_query, quiet_key

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
def test_loud_pairs_come_down_to_the_loudest_and_quiet_ones_keep_their_bits(name):
    bias, config = BIASES[name]()
    heads = bias.view(-1, config.head_dim)
    divisors = [key_divisors(head) for head in heads]
    quieted = torch.stack([quiet_key(head, d) for head, d in zip(heads, divisors)])
    before, after = (x.float().unflatten(-1, (2, -1)).norm(dim=1) for x in (heads, quieted))  # [kv heads, pairs]
    loud = before > LOUDEST
    assert loud.any() and not loud.all()
    assert (after[loud] - LOUDEST).abs().max() < 2**-8 * LOUDEST  # a bfloat16's last place
    assert after[~loud].equal(before[~loud])
    assert quieted.dtype == bias.dtype


def test_a_model_without_loud_keys_is_not_touched():
    rows = torch.randn(SEVEN_B.head_dim, 5, dtype=torch.bfloat16)
    divisors = key_divisors(torch.zeros(SEVEN_B.head_dim, dtype=torch.bfloat16))
    assert quiet_key(rows, divisors) is rows and matching_query(rows, divisors) is rows


@pytest.mark.parametrize("name", BIASES)
def test_an_8_bit_cache_keeps_what_loud_pairs_would_wipe_out(name):
    """Attention of random keys around the bias, rotated, as halves: less than half of the error that is there without."""
    bias, config = BIASES[name]()
    divisors = torch.stack([key_divisors(head) for head in bias.view(-1, config.head_dim)])[:, None]
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
    """x [heads, tokens, head_dim], token t at position t, pairs as Hugging Face has them."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[1])[:, None] * theta ** -(torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1)

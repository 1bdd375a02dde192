"""Which outlier pairs of K's bias are centered, and the table that brings them back after the rotation.

The other outlier pairs are scaled down to OUTLIER_NORM. An 8-bit cache then keeps their neighbors (tests/pcc).

tests/pcc/test_attention.py shows that attention does not change, tests/pcc/test_centered_keys.py what it gains.
"""

from dataclasses import replace

import pytest
import torch
from golden_mesh.rounding import round_to
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding, apply_rotary_pos_emb

from models.demos.qwen25_7b.config import QWEN25_7B
from models.demos.qwen25_7b.plans.rotary_pairs import (
    MOST_LEFT,
    OUTLIER_NORM,
    centered_pairs,
    key_divisors,
    to_half_split,
    to_interleaved,
)
from models.demos.qwen25_7b.plans.slices import HeadNorm
from models.demos.qwen25_7b.reference.hf import hf_config
from models.demos.qwen25_7b.tt.rotary import centered_rows
from tests import families

YARN = replace(QWEN25_7B, rope_scaling=families.YARN)
LONG = replace(QWEN25_7B, max_position_embeddings=131072)  # the base model, without YaRN
PEAK = 228.0  # the longest pair of the 7B's K bias


def bias_of(pairs: dict[int, float]) -> torch.Tensor:
    """[128] around 1, with pairs of these lengths."""
    halves = torch.ones(2, 64)
    for pair, length in pairs.items():
        halves[:, pair] = torch.tensor([-0.6, 0.8]) * length
    return halves.flatten()


def pairs(elements: torch.Tensor) -> list[int]:
    """The numbers of the pairs, each of whose elements counts."""
    first, second = elements.view(2, -1)
    assert first.equal(second)
    return first.nonzero().flatten().tolist()


@pytest.mark.parametrize("config", [QWEN25_7B, YARN, LONG], ids=["32k", "YaRN", "131k"])
def test_pairs_are_centered_if_less_than_half_is_left_at_any_position(config):
    """The other outlier pairs are equalized by their length, and centered ones by what is left."""
    every, rope = bias_of(dict.fromkeys(range(64), PEAK)), config.centering_rope(0)
    centered, divisors = pairs(centered_pairs(every, rope)), key_divisors(every, rope)
    assert centered == list(range(centered[0], 64)), "the slow ones"
    angles = rope.turns(128)
    left = torch.where(angles < torch.pi, 2 * PEAK * (angles / 2).sin(), 2 * PEAK)
    assert left[centered[0]] <= MOST_LEFT * PEAK < left[centered[0] - 1]
    slowest = centered[0]
    assert divisors[:slowest].allclose(torch.tensor(PEAK / OUTLIER_NORM))
    assert divisors[slowest:64].allclose((left[slowest:] / OUTLIER_NORM).clamp(min=1).float())
    assert divisors.view(2, -1)[0].equal(divisors.view(2, -1)[1])
    assert {QWEN25_7B: 52, YARN: 52, LONG: 58}[config] == slowest


def test_only_outliers_are_centered_and_only_in_the_first_and_the_last_layer():
    bias, fast = bias_of({63: PEAK, 62: 15.9, 3: PEAK}), bias_of({3: PEAK})
    rope = QWEN25_7B.centering_rope(0)
    assert pairs(centered_pairs(bias, rope)) == [63]
    assert pairs(centered_pairs(bias.bfloat16(), rope)) == [63]
    assert key_divisors(bias, rope).view(2, -1)[0].gt(1).nonzero().flatten().tolist() == [3]
    assert QWEN25_7B.centering_rope(27) == rope and QWEN25_7B.centering_rope(1) is None
    assert not centered_pairs(bias, None).any()
    assert key_divisors(fast, rope).equal(key_divisors(fast, None)), "as without centering"


@pytest.mark.parametrize("config", [QWEN25_7B, YARN], ids=["plain", "YaRN"])
def test_the_table_is_the_rotated_bias_less_the_bias_at_position_0(config):
    """Hugging Face's rotation in float64, from its own angles. bfloat16 rounds once."""
    positions = 34000
    bias = torch.stack([bias_of({63: PEAK, 60: -170}), bias_of({61: 90})])
    rope = config.centering_rope(0)
    bias = bias * torch.stack([centered_pairs(head, rope) for head in bias])
    rotary = Qwen2RotaryEmbedding(hf_config(config)).double()
    at = torch.arange(positions)
    angles = (rotary.inv_freq.float() * at[:, None].float()).double().repeat(1, 2)
    factor = rotary.attention_scaling
    wide = bias.double()[None, :, None].expand(-1, -1, positions, -1)
    rotated, _ = apply_rotary_pos_emb(wide, wide, *(factor * f(angles)[None] for f in (torch.cos, torch.sin)))
    right = rotated[0] - factor * bias.double()[:, None]

    table = centered_rows(config, to_interleaved(bias), positions)
    table = to_half_split(table.view(2, positions, 128))
    assert table.dtype == torch.bfloat16 and not table[:, 0].any()
    lengths = table.double().unflatten(-1, (2, -1)).norm(dim=-2)
    assert 0 < lengths.max() <= MOST_LEFT * factor * PEAK
    # Half a step of bfloat16, also of small values: a difference of float32 or bfloat16 would lose them.
    assert ((table.double() - right).abs() <= 2**-8 * right.abs() + 1e-9).all()


def test_outliers_of_a_head_norm_leave_an_8_bit_cache_its_bits():
    """Both norms change by powers of two, so that every score stays as it is."""
    norms = {"k": torch.rand(128).add(0.5).bfloat16(), "q": torch.rand(128).add(0.5).bfloat16()}
    norms["k"][[3, 40, 100]] *= 64
    read = {f"{name}_norm": norm for name, norm in norms.items()}.__getitem__
    q, k = (HeadNorm(f"{name}_norm", (128,), 32, "k_norm").read(read).flatten() for name in "qk")
    assert (q * k).equal(to_interleaved(norms["q"]) * to_interleaved(norms["k"]))
    plain = to_interleaved(norms["k"]) < 2
    keys, errors = torch.randn(64, 128), []
    for norm in (k, to_interleaved(norms["k"])):
        exact = keys * norm.float()
        off = (round_to(exact.bfloat16(), "bfloat8_b").float() - exact)[:, plain]
        errors.append(float(off.norm() / exact[:, plain].norm()))
    assert errors[0] < 0.015 < 0.05 < errors[1]

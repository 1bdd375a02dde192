"""Rotary tables equal those of transformers within 1e-6: plain, and YaRN from the model card.

Both spellings of YaRN's config are tested.
"""

from dataclasses import replace

import pytest
import torch
from transformers import Qwen2Config
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

from models.demos.qwen25_7b.config import QWEN25_7B, DecoderConfig
from models.demos.qwen25_7b.config.rope import rope_scaling_of, rotary_frequencies
from models.demos.qwen25_7b.plans.rotary_pairs import to_half_split
from models.demos.qwen25_7b.tt.rotary import rotary_tables

CARD = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
SCALINGS = {
    "plain": None,
    "as the model card gives it": CARD,
    "an attention factor": CARD | {"attention_factor": 0.7},
    "other betas": CARD | {"beta_fast": 16, "beta_slow": 2},
    "no original context": {"rope_type": "yarn", "factor": 2.0},
    "a factor of one": CARD | {"factor": 1.0},
    "not truncated": CARD | {"truncate": False},
    "DeepSeek's two scales": CARD | {"mscale": 0.707, "mscale_all_dim": 1.0},
    "one of the two scales": CARD | {"mscale": 0.707},
    "scales beside an attention factor": CARD | {"mscale": 2, "mscale_all_dim": 1, "attention_factor": 0.7},
}


def config_of(scaling, head_dim=128) -> DecoderConfig:
    fields = {"max_position_embeddings": 32768, "rope_scaling": scaling}
    return replace(QWEN25_7B, rope_scaling=rope_scaling_of(fields), head_dim=head_dim)


@pytest.mark.parametrize("head_dim", [32, 64, 128])
@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_tables_are_transformers(scaling, head_dim):
    config = config_of(scaling, head_dim)
    theirs_config = Qwen2Config(
        hidden_size=3584, num_attention_heads=28, head_dim=head_dim, rope_theta=1e6, max_position_embeddings=32768,
        rope_scaling=None if scaling is None else dict(scaling),
    )  # fmt: skip
    positions = torch.cat([torch.arange(100), torch.arange(config.context - 100, config.context)])
    theirs = Qwen2RotaryEmbedding(theirs_config)(torch.zeros(1), positions[None])
    for ours, expected in zip(rotary_tables(config, config.context), theirs):
        assert (to_half_split(ours[0, 0, positions]) - expected[0]).abs().max() <= 1e-6


def test_angles_at_the_end_of_a_long_context_are_as_exact_as_bfloat16():
    """float32 rounds the product of position and frequency: less than a bfloat16 table rounds cos and sin."""
    config, positions = config_of(None), torch.tensor([32767, 131071])
    frequencies, _ = rotary_frequencies(config.head_dim, config.rope_theta, None)
    angles = torch.outer(positions.double(), frequencies.double()).repeat_interleave(2, dim=-1)
    for table, function in zip(rotary_tables(config, 131072), (torch.cos, torch.sin)):
        assert (table[0, 0, positions] - function(angles)).abs().max() < 2e-3

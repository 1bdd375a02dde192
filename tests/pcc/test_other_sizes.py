"""One layer of each other Qwen2.5 size that fits equals Hugging Face's, with embedding and LM head.

The weights are random. The 0.5B, 1.5B and 3B have two KV heads, which tp 4 and 8 copy.
They cover heads of 64 channels and a tied LM head. Their dims are from their config.json files.
The vocabulary is cut, because the sizes do not differ in it.
"""

from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from models.demos.qwen25_7b.config import QWEN25_7B, QwenConfig
from models.demos.qwen25_7b.reference.hf import hf_model, random_weights
from tests.pcc.reference import Reference
from tests.pcc.test_transformer import STEPS, Talk, assert_logits

ONE_LAYER = replace(
    QWEN25_7B,
    num_hidden_layers=1,
    vocab_size=4096,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_ids=(),
)
SIZES = {
    "0.5B": dict(
        hidden_size=896,
        intermediate_size=4864,
        num_attention_heads=14,
        num_key_value_heads=2,
        head_dim=64,
    ),
    "1.5B": dict(
        hidden_size=1536,
        intermediate_size=8960,
        num_attention_heads=12,
        num_key_value_heads=2,
        head_dim=128,
    ),
    "3B": dict(
        hidden_size=2048,
        intermediate_size=11008,
        num_attention_heads=16,
        num_key_value_heads=2,
        head_dim=128,
    ),
}


@lru_cache(maxsize=None)
def model_of(size: str) -> Reference:
    config: QwenConfig = replace(ONE_LAYER, **SIZES[size])
    weights = random_weights(config)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    return Reference(config, weights, hf_model(config, weights).requires_grad_(False), range(1))


@pytest.mark.make_test_on("N150", "N300", "T3K")
@pytest.mark.parametrize("model", SIZES)
def test_prompts_and_then_a_step_of_all_users(mesh_device, model):
    reference = model_of(model)
    talk = Talk(mesh_device, reference)
    prompted = talk.prompts()
    expected = torch.stack(
        [reference.model(text[None]).logits[0, -1 - STEPS :] for text in talk.sequences], dim=1
    )
    assert_logits(prompted, expected[0])
    assert_logits(talk.step(0), expected[1])

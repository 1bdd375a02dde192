"""One layer of each other Qwen2.5 size that fits equals Hugging Face's, with embedding and LM head.

The weights are random. The 0.5B, 1.5B and 3B have two KV heads, which tp 4 and 8 copy.
They cover heads of 64 channels and a tied LM head.
The vocabulary is cut, because the sizes do not differ in it.
"""

from functools import lru_cache

import pytest

from models.demos.qwen25_7b.reference.hf import random_weights
from tests.families import cut
from tests.pcc.reference import Reference
from tests.pcc.test_transformer import assert_hugging_faces_logits


@lru_cache(maxsize=None)
def model_of(size: str) -> Reference:
    config = cut(size, layers=1)
    weights = random_weights(config)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    return Reference.of(config, weights)


@pytest.mark.make_test_on("N150", "N300", "T3K")
@pytest.mark.parametrize("model", ["0.5B", "1.5B", "3B"])
def test_prompts_and_then_a_step_of_all_users(mesh_device, model):
    assert_hugging_faces_logits(mesh_device, model_of(model), steps=1)

"""Buckets by position, and what a table has of a bucket. The command itself is in test_commands.py."""

from argparse import Namespace
from dataclasses import replace

import pytest
from qwen25_7b_lab.evaluation.model import EvaluatedModel
from qwen25_7b_lab.evaluation.texts import HELD_OUT, buckets_from
from qwen25_7b_lab.rounded import round_model

from models.demos.qwen25_7b.config import BFP8, PERFORMANCE
from models.demos.qwen25_7b.reference.hf import random_weights
from tests.families import hf_model


@pytest.fixture(scope="module")
def small() -> EvaluatedModel:
    return EvaluatedModel.open(None)


@pytest.mark.parametrize("text", [HELD_OUT, None], ids=["file", "chats"])
def test_all_buckets_score_the_same_tokens_at_their_last_positions(small, text):
    options = Namespace(by_position=(40, 100, 130), texts=3, steps=16, text=text, prompt_tokens=32)
    buckets = buckets_from(options, small.tokenizer(), small.directory, small.config.context)
    assert [sample.end for sample in buckets] == [40, 100, 130]
    texts, scored = buckets[-1].texts, buckets[-1].scored
    for sample in buckets:
        end = sample.end
        assert sample.texts == [ids[-end - 1 :] for ids in texts] and sample.tokens > 0
        for ids, positions, longest, at in zip(sample.texts, sample.scored, texts, scored):
            assert all(end - 16 <= position < end for position in positions)
            assert [ids[p + 1] for p in positions] == [longest[p + 1] for p in at]


def test_weights_are_rounded_by_recipe_and_layer_and_tied_embeddings_are_not(small):
    config = replace(
        small.config, num_hidden_layers=2, hidden_size=64, intermediate_size=64,
        num_attention_heads=4, num_key_value_heads=2, vocab_size=64, tie_word_embeddings=True,
        bos_token_id=None, eos_token_ids=(),
    )  # fmt: skip
    weights = random_weights(config)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model = hf_model(config, weights)
    round_model(model, replace(PERFORMANCE, different=((1, BFP8),)))

    def codes(layer: int, name: str) -> int:
        """The most values that a block of 16 outputs of this weight has, without signs."""
        weight = model.model.layers[layer].get_submodule(name).weight.t()
        return max(len(block.abs().unique()) for block in weight.unflatten(-1, (-1, 16)).flatten(0, 1))

    assert codes(0, "mlp.gate_proj") <= 8 < codes(0, "mlp.down_proj"), "4 and 8 bits"
    assert codes(1, "mlp.gate_proj") > 8, "layer 1 differs"
    embedding = weights["model.embed_tokens.weight"].float()
    assert model.model.embed_tokens.weight.equal(embedding)
    difference = (model.lm_head.weight - embedding).abs().max()
    assert 0 < difference < 0.1

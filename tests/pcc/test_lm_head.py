"""TtLMHead equals Hugging Face's lm_head over the whole vocabulary, in token order."""

from dataclasses import replace

import pytest
import torch

from models.demos.qwen25_7b.config import BF16, BFP8
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS, ParallelPlan
from models.demos.qwen25_7b.tt.transformer import TtLMHead
from models.demos.qwen25_7b.weights.model_weights import builder
from tests.pcc.bench import assert_module

pytestmark = pytest.mark.lm_head
PCC = {BF16: 0.9999, BFP8: 0.9997}


@pytest.fixture(scope="module")
def asked(reference, vocabulary):
    """The input of the head, and Hugging Face's logits."""
    x = reference.normed(0, MAX_USERS)
    return x, torch.cat([x @ part.float().t() for part in vocabulary.split(8192)], dim=1)


@pytest.mark.parametrize("recipe", PCC, ids=lambda recipe: recipe.name)
def test_logits_of_a_tile_row(bench, vocabulary, recipe, asked):
    """The chips' columns side by side are the vocabulary. Padding columns are never the largest."""
    x, expected = asked
    dims = replace(bench.config, vocab_size=len(vocabulary))
    config = replace(bench.model_config(recipe), dims=dims, parallel=ParallelPlan.make(dims, bench.plan.tp))
    lm_head = TtLMHead(bench.mesh_device, builder({"lm_head.weight": vocabulary}), config)
    of_chips = torch.cat([bench.get(shard)[:, 0] for shard in lm_head.forward(bench.put(x))], dim=2)
    logits = torch.cat(list(of_chips), dim=1).float()  # [32, tp * plan.vocab]
    assert_module([logits[:, : len(vocabulary)]], expected, pcc=PCC[recipe])
    assert (logits[:, len(vocabulary) :] < -1e29).all()

"""TtEmbedding equals Hugging Face's table look-up exactly. The 7B has its whole vocabulary."""

from dataclasses import replace

import pytest
import torch
import ttnn

from models.demos.qwen25_7b.config import BFP8
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS
from models.demos.qwen25_7b.tt.transformer import TtEmbedding
from models.demos.qwen25_7b.weights.model_weights import builder
from tests.metrics import assert_equal


@pytest.fixture(scope="module")
def embedding(bench, vocabulary):
    model_config = bench.model_config(BFP8)
    model_config = replace(model_config, dims=replace(model_config.dims, vocab_size=len(vocabulary)))
    return TtEmbedding(bench.mesh_device, builder({"model.embed_tokens.weight": vocabulary}), model_config)


@pytest.mark.parametrize("tokens", (0, 32, 128, 256))
def test_a_step_of_32_users_or_a_prefill(bench, embedding, vocabulary, tokens):
    """The vocabulary's first and last token are among them."""
    ids = torch.randint(len(vocabulary), (tokens or MAX_USERS,), generator=torch.Generator().manual_seed(tokens))
    ids[3], ids[-5] = 0, len(vocabulary) - 1
    plan = bench.prefill_plan(tokens, BFP8) if tokens else None
    x = embedding.forward(bench.put_ints(ids[None, None, None], ttnn.uint32), plan or bench.decode)
    for chip in bench.take_rows(x, len(ids), plan):
        assert_equal(chip, torch.nn.functional.embedding(ids, vocabulary).float())

"""TtEmbedding equals Hugging Face's table look-up exactly. The 7B has its whole vocabulary."""

from dataclasses import replace

import pytest
import torch
import ttnn

from models.demos.qwen25_7b.config import BFP8
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS
from models.demos.qwen25_7b.tt.placement import memory_config
from models.demos.qwen25_7b.tt.transformer import TtEmbedding
from models.demos.qwen25_7b.weights.model_weights import builder
from tests.metrics import assert_equal


@pytest.fixture(scope="module")
def embedding(bench, vocabulary):
    model_config = bench.model_config(BFP8)
    model_config = replace(model_config, dims=replace(model_config.dims, vocab_size=len(vocabulary)))
    return TtEmbedding(bench.mesh_device, builder({"model.embed_tokens.weight": vocabulary}), model_config)


def some_tokens(count, vocabulary):
    """Return [count] random token ids, including the vocabulary's first and last."""
    generator = torch.Generator().manual_seed(count)
    tokens = torch.randint(len(vocabulary), (count,), generator=generator)
    tokens[:2] = torch.tensor([0, len(vocabulary) - 1])
    return tokens[torch.randperm(count, generator=generator)]


def test_decode_looks_up_each_users_token(bench, embedding, vocabulary):
    tokens = some_tokens(MAX_USERS, vocabulary)
    x = embedding.forward(bench.put_ints(tokens[None, None, None], ttnn.uint32), bench.decode)
    assert x.memory_config() == memory_config(bench.decode.residual_memory)
    for chip in bench.take_rows(x, MAX_USERS):
        assert_equal(chip, torch.nn.functional.embedding(tokens, vocabulary).float())


@pytest.mark.parametrize("length", (32, 128, 256))
def test_prefill_looks_up_each_token(bench, embedding, vocabulary, length):
    tokens = some_tokens(length, vocabulary)
    plan = bench.prefill_plan(length, BFP8)
    x = embedding.forward(bench.put_ints(tokens[None, None, None], ttnn.uint32), plan)
    assert x.memory_config() == memory_config(plan.residual_memory)
    for chip in bench.take_rows(x, length):
        assert_equal(chip, torch.nn.functional.embedding(tokens, vocabulary).float())

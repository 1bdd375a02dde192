"""Qwen3, Llama 3 and a Llama with biases have Hugging Face's text on every split: packed, after a cached prefix, under
the calls of vLLM's plugin.
"""

import pytest
import torch

from models.demos.qwen25_7b.engine.generator import Generator
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint
from tests.families import NEAR_TIE, assert_greedy, save
from tests.generation import generate

# A T3K's shorter rows are those of these machines.
pytestmark = pytest.mark.make_test_on("N150", "N300", "N150x4", "T3K")
NEW_TOKENS = 6


@pytest.fixture(scope="module")
def saved(request, tmp_path_factory):
    """(checkpoint, Hugging Face's model)."""
    directory = tmp_path_factory.mktemp(request.param)
    model = save(request.param, directory)
    return Checkpoint.open(directory), model


def engine(mesh_device, checkpoint, prompts, replica_of, host_alone):
    """Twice: the second time after cached prefixes."""
    replica = replica_of(3, 512, checkpoint=checkpoint)
    generator = Generator([replica])
    answers = [answer for _ in range(2) for answer in generate(generator, prompts, NEW_TOKENS)]
    replica.close()
    return answers, NEAR_TIE


def plugin(mesh_device, checkpoint, prompts, replica_of, host_alone):
    from tests.vllm.vllm_engine import Engine
    from tests.vllm.vllm_requests import Request, start

    slots = dict(slots=3, max_len=512)
    model, caches, blocks = start(mesh_device, checkpoint, host_alone, **slots, block=64)
    served = [Request(prompt, NEW_TOKENS) for prompt in prompts]
    answers = Engine(model, caches, blocks, 64, **slots, prefix_caching=True).serve(served)
    model.replica.close()
    return answers, 0.2  # weights of 8 bits


# The plugin's calls are alike for all: two families show that its class reads their configs.
WAYS = [(family, engine) for family in ("qwen3", "llama", "llama-bias", "padded heads")]
WAYS += [pytest.param(family, plugin, marks=pytest.mark.make_test_on("N300")) for family in ("qwen3", "llama")]


@pytest.mark.parametrize("saved, way", WAYS, indirect=["saved"])
def test_text_is_hugging_faces(saved, mesh_device, replica_of, host_alone, way):
    checkpoint, model = saved
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(checkpoint.config.vocab_size, (400,), generator=draw).tolist()
    prompts = [ids[:1], ids[1:34], ids[40:140], ids[150:350], ids[150:310] + ids[:9]]  # the last two begin alike
    answers, near_tie = way(mesh_device, checkpoint, prompts, replica_of, host_alone)
    for prompt, answer in zip(prompts * 2, answers):
        assert len(answer) == NEW_TOKENS
        assert_greedy(model, prompt, answer, near_tie)
    assert len({token for answer in answers for token in answer}) > NEW_TOKENS

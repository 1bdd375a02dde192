"""Qwen3, Llama 3 and a Llama with biases have Hugging Face's text on every split: traced or not, packed, after a cached
prefix, under vLLM's calls.
"""

import pytest
import torch

from models.demos.qwen25_7b.config import BF16
from models.demos.qwen25_7b.engine.generator import Generator
from models.demos.qwen25_7b.engine.replica import Replica
from models.demos.qwen25_7b.tt.mesh import traces_available
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint
from tests.families import assert_greedy, save
from tests.generation import generate

# A T3K's shorter rows are those of these machines.
pytestmark = pytest.mark.make_test_on("N150", "N300", "N150x4", "T3K")
NEW_TOKENS = 6
TOKENS = 512


@pytest.fixture(scope="module", params=["qwen3", "llama", "llama-bias", "padded heads"])
def saved(request, tmp_path_factory):
    """(checkpoint, Hugging Face's model)."""
    directory = tmp_path_factory.mktemp(request.param)
    model = save(request.param, directory)
    return Checkpoint.open(directory), model


@pytest.fixture(scope="module")
def prompts(saved) -> list[list[int]]:
    """The last two begin alike, with whole blocks."""
    checkpoint, _ = saved
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(checkpoint.config.vocab_size, (400,), generator=generator).tolist()
    return [ids[:1], ids[1:34], ids[40:140], ids[150:350], ids[150:310] + ids[:9]]


@pytest.mark.parametrize("traced", [True, pytest.param(False, marks=pytest.mark.make_test_on("N300"))])
def test_text_is_hugging_faces(saved, prompts, mesh_device, queues, traced):
    checkpoint, model = saved
    if traced and not traces_available():
        pytest.skip("no traces under slow dispatch")
    replica = Replica.load(
        mesh_device, checkpoint, checkpoint.config, BF16,
        users=3, max_seq_len=TOKENS, traced=traced, queues=queues,
    )  # fmt: skip
    generator = Generator([replica])
    for _ in range(2):  # the second time after cached prefixes
        answers = generate(generator, prompts, NEW_TOKENS)
        for prompt, answer in zip(prompts, answers, strict=True):
            assert len(answer) == NEW_TOKENS
            assert_greedy(model, prompt, answer)
        assert len({token for answer in answers for token in answer}) > NEW_TOKENS
    replica.close()

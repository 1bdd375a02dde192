"""The class for vLLM serves Qwen3 and Llama 3: the plugin finds it under their architectures, and their text is Hugging
Face's.
"""

import json
from pathlib import Path

import pytest
import torch
from vllm_engine import Engine
from vllm_requests import NEW_TOKENS, Request, start

from models.demos.qwen25_7b import vllm
from models.demos.qwen25_7b.config.decoder_config import FAMILIES
from models.demos.qwen25_7b.vllm.generator_vllm import QwenForCausalLM
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint
from tests.families import assert_greedy, save

EXTRA_MODELS = Path(vllm.__path__[0]) / "extra_models"


def test_every_architecture_has_a_folder_for_the_plugin():
    found = [json.loads(file.read_text()) for file in EXTRA_MODELS.glob("*/vllm_metadata.json")]
    assert {entry["arch"] for entry in found} == {f.architecture for f in FAMILIES.values()}
    assert {entry["main_class"] for entry in found} == {"qwen25_7b_for_vllm:QwenForCausalLM"}


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_requests_of_the_plugin(mesh_device, tmp_path, family, host_alone):
    hf = save(family, tmp_path)
    checkpoint = Checkpoint.open(tmp_path)
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(checkpoint.config.vocab_size, (300,), generator=generator).tolist()
    prompts = [ids[at : at + size] for at, size in ((0, 1), (3, 64), (9, 130), (70, 31), (80, 150))]
    slots = dict(slots=3, max_len=256)
    model, caches, blocks = start(QwenForCausalLM, mesh_device, checkpoint, **slots, block=64, compile_in=host_alone)
    served = [Request(prompt, NEW_TOKENS) for prompt in prompts]
    Engine(model, caches, blocks, 64, **slots, prefix_caching=True).serve(served)
    for request in served:
        assert len(request.answer) == NEW_TOKENS
        assert_greedy(hf, request.prompt, request.answer, near_tie=0.2)  # weights of 8 bits
    model.replica.close()

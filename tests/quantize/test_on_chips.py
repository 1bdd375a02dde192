"""A quantized checkpoint with its recipe gives Hugging Face's logits of that checkpoint."""

import pytest

from models.demos.qwen25_7b.config import PERFORMANCE
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint, tensor_shapes
from tests.families import hf_model
from tests.pcc.reference import Reference
from tests.pcc.test_transformer import STEPS, Talk, assert_logits


@pytest.fixture(scope="module")
def reference(quantized) -> Reference:
    checkpoint = Checkpoint.open(quantized)
    weights = {name: checkpoint.tensor(name) for name in tensor_shapes(checkpoint.config)}
    model = hf_model(checkpoint.config, weights).requires_grad_(False)
    return Reference(checkpoint.config, weights, model, range(checkpoint.config.num_hidden_layers))


def test_logits_are_hugging_faces_of_the_same_weights(mesh_device, reference):
    talk = Talk(mesh_device, reference, PERFORMANCE)
    ours = [talk.prompts(), *(talk.step(step) for step in range(STEPS))]
    theirs = [
        [reference.model(text[None]).logits[0, at - 1 - STEPS] for text in talk.sequences] for at in range(STEPS + 1)
    ]
    for logits, expected in zip(ours, theirs, strict=True):
        assert_logits(logits, expected)
    mesh_device.clear_program_cache()  # see tests/pcc/conftest.py

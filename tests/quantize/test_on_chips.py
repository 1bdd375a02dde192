"""A quantized checkpoint with its recipe gives Hugging Face's logits of that checkpoint."""

import pytest

from models.demos.qwen25_7b.config import PERFORMANCE
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint, tensor_shapes
from tests.pcc.reference import Reference
from tests.pcc.test_transformer import assert_hugging_faces_logits


@pytest.fixture(scope="module")
def reference(quantized) -> Reference:
    checkpoint = Checkpoint.open(quantized)
    weights = {name: checkpoint.tensor(name) for name in tensor_shapes(checkpoint.config)}
    return Reference.of(checkpoint.config, weights, range(checkpoint.config.num_hidden_layers))


def test_logits_are_hugging_faces_of_the_same_weights(mesh_device, reference):
    assert_hugging_faces_logits(mesh_device, reference, PERFORMANCE)
    mesh_device.clear_program_cache()  # see tests/pcc/conftest.py

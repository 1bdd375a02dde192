"""Formats of a prefill's all-reduces, from the captured operations of a layer."""

import pytest
from golden_mesh.graph.device_ops import Op
from qwen25_7b_lab.perf.capture import capture_prefill

from models.demos.qwen25_7b.config import BFP8, PERFORMANCE
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint

pytestmark = pytest.mark.usefixtures("without_values")

SENT = {BFP8: "bfloat16", PERFORMANCE: "bfloat8_b"}


@pytest.fixture(scope="module", params=SENT, ids=lambda recipe: recipe.name)
def recipe(request):
    return request.param


@pytest.fixture(scope="module")
def layer(mesh_device, recipe) -> tuple[Op, ...]:
    config = Checkpoint.open(SMALL_CHECKPOINT).config
    ((_, step),) = capture_prefill(mesh_device, config, recipe, tokens=64)
    return step.layer


def test_only_the_all_gather_of_the_performance_recipe_sends_bfloat8_b(mesh_device, recipe, layer):
    """A reduce-scatter of bfloat8_b would round the sum on every chip."""
    sent = [(op.name, op.inputs[0].dtype) for op in layer if op.name.endswith(("Scatter", "Gather"))]
    all_reduce = [("ReduceScatter", "bfloat16"), ("AllGather", SENT[recipe])]
    assert sent == 2 * (all_reduce if mesh_device.shape[1] > 1 else [])


def test_a_sum_in_bfloat8_b_takes_one_more_operation(mesh_device, recipe, layer):
    """The other two typecasts are of k and v, for an 8-bit cache."""
    rounds_sums = mesh_device.shape[1] > 1 and SENT[recipe] == "bfloat8_b"
    typecasts = [op for op in layer if op.name == "Typecast"]
    cached = 2 if recipe.kv_cache == "bfloat8_b" else 0
    assert len(typecasts) == cached + (2 if rounds_sums else 0)
    assert {op.result.dtype for op in typecasts} <= {"bfloat8_b"}


def test_the_residual_stays_bfloat16(layer):
    adds = [op for op in layer if op.call == "add"]
    assert [op.result.dtype for op in adds] == ["bfloat16", "bfloat16"]
    assert [op.inputs[0].dtype for op in adds] == ["bfloat16", "bfloat16"]

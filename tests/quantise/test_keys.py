"""The tables of what equalised keys buy: on the small checkpoint, whose first and last layers have loud keys."""

import pytest
import torch

from models.demos.qwen25_7b.quantize.cached_keys import drift_rows, equalised, layer_rows
from models.demos.qwen25_7b.quantize.compare import float_model
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.text import Text
from models.demos.qwen25_7b.weights import Checkpoint


@pytest.fixture(scope="module")
def model():
    return float_model(Checkpoint.open(SMALL_CHECKPOINT))


@pytest.fixture(scope="module")
def ids(held_out):
    return torch.tensor(Text(SMALL_CHECKPOINT, instruct=False).tokenizer.encode(held_out)[:512]).view(2, 256)


def test_loud_layers_lose_a_third_of_what_they_lost_and_the_others_are_as_they_were(model, ids):
    errors = [[float(error) for error in row[3:]] for row in layer_rows(model, ids)]
    for in_bfloat16, as_it_was, even in (errors[0], errors[3]):
        assert in_bfloat16 < even < as_it_was / 3
    for _, as_it_was, even in errors[1:3]:
        assert even == as_it_was


def test_an_equalised_model_says_what_it_said(model, ids):
    """But for a last place of bfloat16 in its scaled weights."""
    expected, found = (m(ids).logits for m in (model, equalised(model)))
    assert (found - expected).norm() < 5e-3 * expected.norm()


def test_keys_that_decode_writes_larger_cost_less_than_a_fifth_of_the_rounding(model, ids):
    kl = {name: float(value) for name, value in drift_rows(model, ids)}
    on_a_chip, before, drift = (
        next(value for name, value in kl.items() if part in name)
        for part in ("as it is on a chip", "keys as they were", "no rounding")
    )
    assert on_a_chip < before / 5
    assert drift < on_a_chip / 5

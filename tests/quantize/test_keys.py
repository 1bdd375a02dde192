"""The tables of `quantize.keys` on the small checkpoint.

Its first and last layers have outlier pairs.
"""

import pytest
import torch

from models.demos.qwen25_7b.quantize.cached_keys import drift_rows, equalized, layer_rows
from models.demos.qwen25_7b.quantize.compare import float_model
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.tokenizer import ChatTokenizer
from models.demos.qwen25_7b.weights import Checkpoint


@pytest.fixture(scope="module")
def model():
    return float_model(Checkpoint.open(SMALL_CHECKPOINT))


@pytest.fixture(scope="module")
def ids(held_out):
    return torch.tensor(
        ChatTokenizer(SMALL_CHECKPOINT, instruct=False).hf.encode(held_out)[:512]
    ).view(2, 256)


def test_equalized_keys_leave_a_third_of_the_error_in_outlier_layers_only(model, ids):
    errors = [[float(error) for error in row[3:]] for row in layer_rows(model, ids)]
    for in_bfloat16, as_it_was, even in (errors[0], errors[3]):
        assert in_bfloat16 < even < as_it_was / 3
    for _, as_it_was, even in errors[1:3]:
        assert even == as_it_was


def test_equalized_keys_change_no_logits(model, ids):
    """Only the scaled weights differ, in the last place of bfloat16."""
    expected, found = (m(ids).logits for m in (model, equalized(model)))
    assert (found - expected).norm() < 5e-3 * expected.norm()


def test_decodes_larger_keys_cost_less_than_a_fifth_of_rounding(model, ids):
    kl = {name: float(value) for name, value in drift_rows(model, ids)}
    on_a_chip, before, drift = (
        next(value for name, value in kl.items() if part in name)
        for part in ("as on a chip", "keys as they were", "no rounding")
    )
    assert on_a_chip < before / 5
    assert drift < on_a_chip / 5

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
    for in_bfloat16, _, as_it_was, even, _ in (errors[0], errors[3]):
        assert in_bfloat16 < even < as_it_was / 3
    for _, _, as_it_was, even, centered in errors[1:3]:
        assert even == centered == as_it_was


def test_centered_keys_gain_with_a_bfloat16_cache(model, ids):
    """The small checkpoint's own q is small in outlier pairs, so that its 8-bit cache gains nothing."""
    errors = [[float(error) for error in row[3:]] for row in layer_rows(model, ids)]
    for uncentered, centered, _, even, centered_in_8_bits in (errors[0], errors[3]):
        assert centered < uncentered / 1.2 and centered_in_8_bits < 1.1 * even


@pytest.mark.parametrize("center", [False, True])
def test_equalized_keys_change_no_logits(model, ids, center):
    """Only the scaled weights differ, in the last place of bfloat16."""
    expected, found = (m(ids).logits for m in (model, equalized(model, center=center).model))
    assert (found - expected).norm() < 5e-3 * expected.norm()


def test_decodes_larger_keys_cost_less_than_a_fifth_of_rounding(model, ids):
    kl = {name: float(value) for name, value in drift_rows(model, ids)}
    on_a_chip, before, drift = (
        next(value for name, value in kl.items() if part in name)
        for part in ("8-bit, centered: as on a chip", "keys as they were", "no rounding")
    )
    assert on_a_chip < before / 5
    assert drift < on_a_chip / 5

"""The metric of every accuracy test refuses results that differ from the reference."""

import math

import pytest
import torch

from tests.metrics import assert_close, assert_equal

REFERENCE = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
NOISE = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))


def with_one(value: float) -> torch.Tensor:
    changed = REFERENCE.clone()
    changed[3, 5] = value
    return changed


@pytest.mark.parametrize(
    "result, reference",
    [
        pytest.param(REFERENCE.clone(), REFERENCE, id="the reference"),
        pytest.param(REFERENCE.bfloat16(), REFERENCE, id="bfloat16"),
        # 0.999 stands for a relative error of sqrt(1 - 0.999^2) = 4.5 %
        pytest.param(REFERENCE + 0.04 * NOISE, REFERENCE, id="noise of 4 %"),
    ],
)
def test_results_near_the_reference_pass(result, reference):
    assert_close(result, reference, pcc=0.999)


WRONG = {
    "noise of 5 %": REFERENCE + 0.05 * NOISE,
    "one NaN": with_one(math.nan),
    "one infinity": with_one(math.inf),
    "one huge": with_one(1e6),
    "zeros": torch.zeros_like(REFERENCE),
    "a constant": torch.full_like(REFERENCE, 0.5),
    "doubled": 2 * REFERENCE,
    "nine tenths": 0.9 * REFERENCE,
    "an offset": REFERENCE + 0.5,
    "negated": -REFERENCE,
    "reversed": REFERENCE.flip(0),
    "transposed": REFERENCE.T.contiguous(),
    "flat": REFERENCE.flatten(),
    "an extra dimension": REFERENCE[None],
    "broadcastable": REFERENCE[:, :1],
}


@pytest.mark.parametrize("case", WRONG)
def test_results_other_than_the_reference_are_refused(case):
    with pytest.raises(AssertionError):
        assert_close(WRONG[case], REFERENCE, pcc=0.999)
    with pytest.raises(AssertionError):
        assert_equal(WRONG[case], REFERENCE)

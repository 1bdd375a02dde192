"""The vector unit's exp, which attention and softmax use."""

import math

import torch

from golden_mesh.arithmetic.vector import exp


def test_exp_equals_torchs_and_flushes_denormals_to_zero():
    x = torch.linspace(-150, 0, 20_001)
    expected, smallest = torch.exp(x * 0.75), torch.finfo(torch.float32).tiny
    got = exp(x, 0.75, approximate=False)
    seen, gone = expected > 1.02 * smallest, expected < smallest
    assert seen.any() and got[seen].equal(expected[seen])
    assert gone.any() and not got[gone].any()


def test_exp_of_masked_scores_is_zero_and_of_nan_is_nan():
    got = exp(torch.tensor([-3.0e38, -math.inf, math.nan, 0]), 0.125, approximate=False)
    assert got[:2].tolist() == [0, 0] and got[2].isnan() and got[3] == 1

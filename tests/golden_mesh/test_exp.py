"""The vector unit's exp, of which attention and softmax are made."""

import math

import torch

from models.common.golden_mesh.arithmetic.vector import exp


def test_it_is_torchs_and_zero_where_that_is_denormal():
    x = torch.linspace(-150, 0, 20_001)
    expected, smallest = torch.exp(x * 0.75), torch.finfo(torch.float32).tiny
    got = exp(x, 0.75, approximate=False)
    seen, gone = expected > 1.02 * smallest, expected < smallest
    assert seen.any() and got[seen].equal(expected[seen])
    assert gone.any() and not got[gone].any()


def test_what_is_hidden_weighs_nothing_and_what_is_no_number_stays_none():
    got = exp(torch.tensor([-3.0e38, -math.inf, math.nan, 0]), 0.125, approximate=False)
    assert got[:2].tolist() == [0, 0] and got[2].isnan() and got[3] == 1

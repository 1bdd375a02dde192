"""The vector unit's exp, which attention and softmax use, and its kernels for a bfloat16 dest."""

import math

import pytest
import torch

from golden_mesh.arithmetic.vector import exp, in_bfloat16_dest, parabolic_exp

TORCH = {"EXP": torch.exp, "SIGMOID": torch.sigmoid, "SILU": torch.nn.functional.silu}


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


def test_exp_between_two_chunks_of_keys_is_zero_after_a_chunk_that_is_hidden():
    """The chip's parabola has no number below 2**-126."""
    x = torch.tensor([-3.0e38, torch.finfo(torch.float32).min, -1e9, -88.5, -1.0, 0])
    got = parabolic_exp(x)
    assert got[:4].tolist() == [0, 0, 0, 0] and got[4:].tolist() == pytest.approx([math.exp(-1), 1], rel=2e-3)


@pytest.mark.parametrize("name", TORCH)
def test_kernels_of_a_bfloat16_dest_on_every_value(name):
    """Within a unit in the last place up to |x| of 87. Beyond, exp is infinite, or counts as zero. Subnormals count as
    zero. NaN of exp is NaN; of the others test_special.py has what a chip gives."""
    codes = torch.arange(1 << 16, dtype=torch.int32).bitwise_left_shift(16)
    x = codes.view(torch.float32).bfloat16()
    got, exact = in_bfloat16_dest(name)(x).double(), TORCH[name](x.double())
    near, above, below = x.abs() <= 87, x > 89, (x < -89) & x.isfinite()
    unit = torch.where(x.abs() < 2.0**-126, 2.0**-126, exact.abs().clamp(min=2.0**-126) * 2**-7)
    assert ((got - exact).abs() <= unit)[near].all()
    limit = torch.inf if name == "EXP" else exact[above]
    assert (got[above] == limit).all()
    assert not got[below].any()
    assert name != "EXP" or got[x.isnan()].isnan().all()

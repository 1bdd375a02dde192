"""The metric of every accuracy test refuses results that differ from the reference."""

import math

import pytest
import torch

from models.common.metrics import assert_close, assert_equal, compare

REFERENCE = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))


def noisy(relative: float) -> torch.Tensor:
    noise = torch.randn(REFERENCE.shape, generator=torch.Generator().manual_seed(1))
    return REFERENCE + relative * noise


def with_one(value: float) -> torch.Tensor:
    changed = REFERENCE.clone()
    changed[3, 5] = value
    return changed


def test_the_reference_itself_is_close():
    found = assert_close(REFERENCE.clone(), REFERENCE, pcc=1 - 1e-9, relative_error=1e-9)
    assert found.pcc == pytest.approx(1) and found.relative_error == 0


def test_comparison_is_pearson_and_relative_norm():
    actual = noisy(0.3)
    found = compare(actual, REFERENCE)
    both = torch.stack([actual.flatten(), REFERENCE.flatten()]).double()
    assert found.pcc == pytest.approx(float(torch.corrcoef(both)[0, 1]))
    assert found.relative_error == pytest.approx(
        float((actual - REFERENCE).norm() / REFERENCE.norm()), rel=1e-5
    )


@pytest.mark.parametrize(
    "noise, accepted", [(0.01, True), (0.04, True), (0.05, False), (0.5, False)]
)
def test_a_pcc_sets_how_much_noise_passes(noise, accepted):
    """0.999 stands for a relative error of sqrt(1 - 0.999^2) = 4.5 %."""
    if accepted:
        assert_close(noisy(noise), REFERENCE, pcc=0.999)
    else:
        with pytest.raises(AssertionError):
            assert_close(noisy(noise), REFERENCE, pcc=0.999)


@pytest.mark.parametrize(
    "wrong",
    [
        with_one(math.nan),
        with_one(math.inf),
        with_one(1e6),
        torch.full_like(REFERENCE, math.nan),
        torch.zeros_like(REFERENCE),
        torch.full_like(REFERENCE, 0.5),
        2 * REFERENCE,
        0.9 * REFERENCE,
        REFERENCE + 0.5,
        -REFERENCE,
        REFERENCE.flip(0),
        REFERENCE.T.contiguous(),
        REFERENCE.flatten(),
        REFERENCE[None],
        REFERENCE[:, :1],
    ],
    ids="one-nan one-inf one-huge all-nan zeros constant double nine-tenths offset negated reversed transposed flat "
    "extra-dim broadcastable".split(),
)
def test_results_other_than_the_reference_are_refused(wrong):
    with pytest.raises(AssertionError):
        assert_close(wrong, REFERENCE, pcc=0.999)
    with pytest.raises(AssertionError):
        assert_equal(wrong, REFERENCE)


@pytest.mark.parametrize("reference", [with_one(math.nan), with_one(math.inf)])
def test_a_reference_that_is_not_finite_is_refused(reference):
    """It is refused even against itself. NaN on both sides is two defects, not a match."""
    with pytest.raises(AssertionError):
        assert_close(reference.clone(), reference, pcc=0.999)
    with pytest.raises(AssertionError):
        assert_close(REFERENCE, reference, pcc=0.999)


def test_a_constant_is_refused_even_where_the_reference_is_one():
    """A test with a constant reference has the wrong data."""
    with pytest.raises(AssertionError):
        assert_close(torch.ones(8), torch.ones(8), pcc=0.999)


def test_an_offset_that_correlation_forgives_is_refused():
    big = REFERENCE + 1000
    assert compare(big + 100, big).pcc > 0.999
    with pytest.raises(AssertionError):
        assert_close(big + 100, big, pcc=0.999)


def test_a_large_constant_does_not_inflate_the_correlation():
    with pytest.raises(AssertionError):
        assert_close(noisy(1.0) + 1000, REFERENCE + 1000, pcc=0.999)


def test_low_precision_results_are_compared_in_double():
    assert_close(REFERENCE.bfloat16(), REFERENCE, pcc=0.99999)
    assert_equal(REFERENCE.bfloat16().float(), REFERENCE.bfloat16())


def test_equality_counts_the_differences():
    with pytest.raises(AssertionError, match=r"1 of 4096 values differ, the first at \[3, 5\]"):
        assert_equal(with_one(9.0), REFERENCE)
    assert_equal(REFERENCE.clone(), REFERENCE)

"""Strict comparison of a result with its reference.

Correlation alone forgives a wrong scale, and NaN compares as false. So a result must be finite, must
vary, must correlate (PCC) and must be near (relative error).
"""

import torch


def pearson(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Pearson correlation, computed in float64."""
    return float(torch.corrcoef(torch.stack([actual.double().flatten(), expected.double().flatten()]))[0, 1])


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """|actual - expected| / |expected|, Euclidean norms in float64."""
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


def assert_close(actual: torch.Tensor, expected: torch.Tensor, *, pcc: float, most: float | None = None) -> None:
    """AssertionError with the numbers unless `actual` is as near as asked.

    most: the relative error. The default, sqrt(1 - pcc^2), is that of a result of the right scale with that PCC.
    """
    assert actual.shape == expected.shape, f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    assert expected.isfinite().all(), "the reference itself is not finite"
    assert actual.isfinite().all(), f"{(~actual.isfinite()).sum()} of {actual.numel()} values are not finite"
    assert actual.numel() < 2 or actual.float().std() > 0, f"all values are {actual.flatten()[0]}"
    bound = (1 - pcc**2) ** 0.5 if most is None else most
    found, error = pearson(actual, expected), relative_error(actual, expected)
    text = f"pcc {found:.6f}, relative error {error:.2e}; asked: pcc {pcc}, relative error {bound:.2e}"
    assert found >= pcc and error <= bound, text


def assert_equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """AssertionError with the number of differences unless both are equal, value by value."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, check_dtype=False)

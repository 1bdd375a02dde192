"""Strict comparison of a result with its reference.

Correlation alone forgives a wrong scale, and NaN compares as false. So a result must be finite, must
vary, must correlate (PCC) and must be near (relative error).
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Comparison:
    pcc: float  # Pearson correlation
    relative_error: float  # |actual - expected| / |expected|, Euclidean norms

    def __str__(self) -> str:
        return f"pcc {self.pcc:.6f}, relative error {self.relative_error:.2e}"


def compare(actual: torch.Tensor, expected: torch.Tensor) -> Comparison:
    """How near `actual` is to `expected`, computed in float64."""
    a, e = actual.double().flatten(), expected.double().flatten()
    error = (a - e).norm() / e.norm()
    a, e = a - a.mean(), e - e.mean()
    return Comparison(float(a @ e / (a.norm() * e.norm())), float(error))


def assert_close(
    actual: torch.Tensor, expected: torch.Tensor, *, pcc: float, relative_error: float | None = None
) -> Comparison:
    """AssertionError with the numbers unless `actual` is as near as asked.

    relative_error: the most. The default, sqrt(1 - pcc^2), is the error of a result of the right
    scale with that PCC.
    """
    assert actual.shape == expected.shape, f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    assert expected.isfinite().all(), "the reference itself is not finite"
    assert actual.isfinite().all(), f"{(~actual.isfinite()).sum()} of {actual.numel()} values are not finite"
    assert actual.numel() < 2 or actual.float().std() > 0, f"all values are {actual.flatten()[0]}"
    bound = (1 - pcc**2) ** 0.5 if relative_error is None else relative_error
    found = compare(actual, expected)
    assert found.pcc >= pcc and found.relative_error <= bound, f"{found}; asked: pcc {pcc}, relative error {bound:.2e}"
    return found


def assert_equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """AssertionError with the number of differences unless both are equal, value by value."""
    assert actual.shape == expected.shape, f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    different = actual != expected
    assert not different.any(), (
        f"{int(different.sum())} of {actual.numel()} values differ, the first at {different.nonzero()[0].tolist()}"
    )

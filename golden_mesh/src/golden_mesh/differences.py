"""The difference of a tensor from float32, in numbers."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Error:
    """A chip's tensor against float32. The values are those of the chip with the largest relative error."""

    pcc: float
    relative: float  # L2 norm of the difference, divided by the norm in float32
    gain: float  # of a line through the origin: 1 is right
    largest: float  # absolute difference
    place: tuple[int, ...]  # of the largest difference
    nonfinite: int  # values that are infinite or NaN, and finite in float32
    chip: int


def error(value: torch.Tensor, exact: torch.Tensor, chip: int) -> Error:
    """Compare a chip's values with float32. Values that are NaN in float32 count as not written."""
    a, b = value.reshape(-1).float(), exact.reshape(-1).float()
    places = None
    if not (a.sum() + b.sum()).isfinite():
        places = (b.isfinite()).nonzero().flatten()
        a, b = a[places], b[places]
    wrong = ~a.isfinite()
    nonfinite = int(wrong.sum()) if not a.sum().isfinite() else 0
    if nonfinite:
        a = a.masked_fill(wrong, 0)
    if not len(b):
        return Error(1.0, 0.0, 1.0, 0.0, (), 0, chip)
    total = lambda x: x.sum(dtype=torch.float64).item()  # noqa: E731
    difference = a - b
    at = int(difference.abs_().argmax())
    largest = difference[at].item()
    square = total(difference.square_())
    aa, bb, ab, mean_a, mean_b = total(a * a), total(b * b), total(a * b), total(a), total(b)
    count = len(b)
    spread = (aa - mean_a**2 / count) * (bb - mean_b**2 / count)
    if square <= 1e-14 * bb or square == 0:
        pcc = 1.0
    else:
        pcc = (ab - mean_a * mean_b / count) / spread**0.5 if spread > 0 else 0.0
    at = int(places[at]) if places is not None else at
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), exact.shape))
    relative = (square / bb) ** 0.5 if bb else float(square > 0)
    return Error(pcc, relative, ab / bb if bb else 1.0, largest, place, nonfinite, chip)


def worst(values: list[torch.Tensor], exact: list[torch.Tensor]) -> Error:
    """The error on the chip with the largest one. Replicas are compared once."""
    pairs = {(id(a), id(b)): (a, b, chip) for chip, (a, b) in enumerate(zip(values, exact))}
    errors = [error(*pair) for pair in pairs.values()]
    return max(errors, key=lambda each: (each.nonfinite, each.relative))

"""What a set of numbers is recognized by, whole or a part of its rows (golden-mesh compare)."""

from functools import cached_property
from typing import Optional

import torch

TOLERANCE = 0.01  # relative; of a bfloat16 reference, or weights that were rounded before the program got them
COUNTS = 0.005  # relative difference of the numbers of values: a bfloat16 sum is zero more often
MASK = 1e9  # larger numbers are masks
FEWEST = 64  # values that tell a tensor from another
FEWEST_ROWS = 16  # that tell a part of a tensor from another
ONE_ROW = 4  # times the tolerance, of a single row among many
EXTREMES, QUANTILES = 16, 64  # samples of the sorted values: from both ends, and between


class Fingerprint:
    """What a set of numbers is recognized by. Samples are sorted out when they are needed."""

    def __init__(self, x: torch.Tensor):
        x = x.detach().flatten()
        self.x: Optional[torch.Tensor] = x[(x != 0) & (x.abs() < MASK)].float()
        self.count = len(self.x)

    def keep(self) -> "Fingerprint":
        """Compute everything, and let go of the tensor."""
        _ = self.samples, self.sums
        self.x = None
        return self

    @cached_property
    def sums(self) -> torch.Tensor:
        """Of x, |x| and x|x|, each divided by what independent noise adds to it."""
        return torch.stack(_sums(self.x.double()), -1)

    @cached_property
    def samples(self) -> torch.Tensor:
        ordered = self.x.sort().values
        at = torch.linspace(0, self.count - 1, QUANTILES + 2).long()[1:-1]
        return torch.cat((ordered[:EXTREMES], ordered[-EXTREMES:], ordered[at]))

    @property
    def norm(self) -> float:
        return self.sums[0, 1].item()

    def distance(self, other: "Fingerprint") -> float:
        """From the other's numbers, in tolerances: up to 1 these are the other's numbers, but for rounding."""
        if abs(self.count - other.count) > COUNTS * other.count:
            return float("inf")
        (mine, _), (theirs, noise) = self.sums.T, other.sums.T
        of_sums = ((mine - theirs).abs() / (theirs.abs() / 100 + noise)).max().item()
        if of_sums > TOLERANCE:
            return of_sums / TOLERANCE
        mine, theirs = (f.samples.split([2 * EXTREMES, QUANTILES]) for f in (self, other))
        ends = ((mine[0] - theirs[0]) / theirs[0]).square().mean().sqrt().item()
        between = ((mine[1] - theirs[1]).norm() / theirs[1].norm()).item()
        return max(of_sums, ends, between / 2) / TOLERANCE


class Rows:
    """Sums of each row: of x, |x| and x|x|, and what independent noise adds to each. [rows, 3]"""

    def __init__(self, x: torch.Tensor, dim: int):
        """x: [batch, ..., rows, ...], with its rows along dim: those of one batch entry after the other."""
        x = x.movedim(dim, 1) if dim else x[None]
        x = x.reshape(x.shape[0] * x.shape[1], -1).detach().double()
        self.sums, self.noise = (each.float() for each in _sums(torch.where(x.abs() < MASK, x, 0.0)))


def _sums(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums along the last dim of x, |x| and x|x| [..., 3], and what independent noise adds to each."""
    parts = x, x.abs(), x * x.abs()
    noise = torch.stack([each.square().sum(-1).sqrt() for each in parts], -1)
    return torch.stack([each.sum(-1) for each in parts], -1), noise


class RowIndex:
    """Tensors of equal numbers of rows, to find a part in."""

    def __init__(self, wholes: dict[int, Rows]):
        """wholes: by their numbers"""
        self.numbers = list(wholes)
        self.sums = torch.stack([rows.sums for rows in wholes.values()])  # [wholes, rows, 3]
        noise = torch.stack([rows.noise for rows in wholes.values()])
        self.allowed = TOLERANCE * (self.sums.abs() / 100 + noise) + 1e-30

    def find(self, part: Rows) -> list[tuple[int, slice, float]]:
        """(number, rows, distance in tolerances) of each whole that has the part's rows."""
        count, found = len(part.sums), []
        if not FEWEST_ROWS <= count < self.sums.shape[1]:
            return []
        first = ((self.sums - part.sums[0]).abs() <= ONE_ROW * self.allowed).all(-1)
        for which, start in first[:, : self.sums.shape[1] - count + 1].nonzero().tolist():
            rows = slice(start, start + count)
            distances = (part.sums - self.sums[which, rows]).abs() / self.allowed[which, rows]
            distance = distances.square().mean().sqrt().item()
            if distances.max() <= ONE_ROW and distance <= 1:
                found.append((self.numbers[which], rows, distance))
        return found

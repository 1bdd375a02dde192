"""The difference of a tensor from float32, in numbers."""

from dataclasses import dataclass, replace

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
    wild: int = 0  # values that are infinite or NaN, also where float32 is; replicas count once
    channels: float = 0.0  # the relative error where each channel counts alike; 0: not computed

    @property
    def badness(self) -> tuple:
        return self.nonfinite, max(self.relative, self.channels)


def error(value: torch.Tensor, exact: torch.Tensor, chip: int, shape=(), places=None, channels=False) -> Error:
    """Compare a chip's values with float32.

    places: the elements' places in a flat tensor of `shape`, if they are some of its elements.
    channels: also compute the error by channel (of the last dim).
    """
    shape = shape or tuple(exact.shape)
    a, b = value.flatten().float(), exact.flatten().float()
    difference = a - b
    nonfinite = wild = 0
    if not (difference @ difference).isfinite():  # infinite or NaN in float32: no part of the error
        wild = int((~a.isfinite()).sum())
        finite = b.isfinite().nonzero().flatten()
        places = finite if places is None else places[finite]
        b, difference = b[finite], difference[finite]
        wrong = ~difference.isfinite()
        nonfinite = int(wrong.sum())
        difference[wrong] = -b[wrong]
    if not len(b):
        return Error(1.0, 0.0, 1.0, 0.0, (), 0, chip, wild)
    sums = b.sum(), difference.sum(), b @ b, difference @ difference, b @ difference
    b_sum, d_sum, bb, dd, bd = (each.item() for each in sums)
    count = len(b)
    b_spread, d_spread = bb - b_sum**2 / count, dd - d_sum**2 / count
    common = bd - b_sum * d_sum / count
    a_spread = b_spread + 2 * common + d_spread
    lost = b_spread * d_spread - common**2  # this form keeps the digits of 1 - pcc
    if dd == 0:
        pcc = 1.0
    else:
        pcc = 1 - lost / (a_spread * b_spread) if a_spread > 0 and b_spread > 0 else 0.0
        pcc = (1 if b_spread + common > 0 else -1) * max(pcc, 0) ** 0.5
    by_channel = _by_channel(difference, b, shape[-1]) if channels and shape else 0.0
    at = int(difference.abs_().argmax())
    largest = difference[at].item()
    at = at if places is None else int(places[at])
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), shape))
    relative = (dd / bb) ** 0.5 if bb else float(dd > 0)
    gain = 1 + bd / bb if bb else 1.0
    return Error(pcc, relative, gain, largest, place, nonfinite, chip, wild, by_channel)


def _by_channel(difference: torch.Tensor, b: torch.Tensor, count: int) -> float:
    """Root mean square of the channels' relative errors. Channels of zeros do not count."""
    if len(b) % count:  # some of the elements
        return 0.0
    dd, bb = (each.view(-1, count).square().sum(0) for each in (difference, b))
    return (dd[bb > 0] / bb[bb > 0]).mean().sqrt().item() if bb.any() else 0.0


def worst(values: list, exact: list, shape: tuple = (), places: list | None = None, channels: bool = False) -> Error:
    """The Error on the chip with the largest one. Replicas are compared once."""
    pairs = {(id(a), id(b)): (a, b, chip) for chip, (a, b) in enumerate(zip(values, exact))}
    errors = [error(a, b, chip, shape, places and places[chip], channels) for a, b, chip in pairs.values()]
    largest = max(errors, key=lambda each: each.badness)
    return replace(largest, wild=sum(each.wild for each in errors))

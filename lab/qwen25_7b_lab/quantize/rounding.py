"""Rounding of a weight [in, out] to block floats, in which 16 neighbors in a row share an exponent.

`rounded` is ttnn's packing. `compensated` is error-compensated rounding (GPTQ, arXiv 2210.17323): the rounding error of
a row is taken away from the outputs again by the rows that are not yet rounded. `refitted` fits an 8-bit weight to
inputs that rounding has changed.
"""

from typing import Callable

import torch
from golden_mesh.rounding import BLOCK, round_to

BITS = 3  # a bfloat4_b code's bits without its sign
ROWS = 64  # rounded before later rows are updated: one matrix product instead of 64 thin ones
DAMPING = 0.3  # share of the mean of the Hessian's diagonal: distrust of the calibration text


def rounded(weight: torch.Tensor, format: str) -> torch.Tensor:
    """The weight as ttnn packs it, in float32."""
    return round_to(weight, format).float()


def nearest_codes(rows: torch.Tensor) -> torch.Tensor:
    """rows [..., columns] -> the nearest values of bfloat4_b, each block with the best of three exponents.

    Packing does not change the result: the step of its largest value divides every value.
    """
    return at_step(rows.unflatten(-1, (-1, BLOCK)), best_step(rows)).flatten(-2)


def best_step(rows: torch.Tensor) -> torch.Tensor:
    """rows [..., columns] -> the step of a code in each block, [..., blocks, 1].

    The packing of ttnn takes the exponent of a block's largest value. Half of that step cuts the largest value off at
    7 codes, and is finer for the other fifteen values. The double step reaches a largest value of 7.5 to 8 codes, which
    the packing cuts off to 7.
    """
    blocks = rows.unflatten(-1, (-1, BLOCK))
    largest = blocks.abs().amax(-1, keepdim=True)
    exponent = torch.frexp(largest).exponent  # largest < 2 ** exponent
    packing = torch.ldexp(torch.ones_like(largest), exponent - BITS)
    best, error = packing, _squared_error(blocks, packing)
    for factor in (0.5, 2.0):
        other_error = _squared_error(blocks, packing * factor)
        best = torch.where(other_error < error, packing * factor, best)
        error = torch.minimum(error, other_error)
    return best


def at_step(blocks: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """blocks [..., blocks, 16] in whole codes of their steps [..., blocks, 1]."""
    largest = (1 << BITS) - 1
    return (blocks / step).round().clamp(-largest, largest) * step


def _squared_error(blocks: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """[..., blocks, 1]"""
    return (blocks - at_step(blocks, step)).pow(2).sum(-1, keepdim=True)


def hessian(inputs: torch.Tensor) -> torch.Tensor:
    """inputs [tokens, in] -> [in, in], half the second derivative of the mean squared error of inputs @ weight."""
    return inputs.t() @ inputs / len(inputs)


def compensated(
    weight: torch.Tensor, hessian: torch.Tensor, nearest: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """weight [in, out] -> the weight in values that `nearest` gives for a row [out].

    Also each row just before it was rounded, with the errors of earlier rows taken in.
    The largest inputs come first: their errors are the largest, and most rows are left to compensate them.
    """
    order = hessian.diagonal().argsort(descending=True, stable=True)
    factor = _inverse_factor(hessian[order][:, order])
    left = weight[order]  # rows to be rounded, with the errors of earlier rows taken in
    result = torch.empty_like(weight)
    for first in range(0, len(left), ROWS):
        last = min(first + ROWS, len(left))
        block, within = left[first:last], factor[first:last, first:last]
        errors = torch.empty_like(block)
        for i, row in enumerate(block):
            codes = nearest(row)
            result[order[first + i]] = codes
            errors[i] = (row - codes) / within[i, i]
            block[i + 1 :].addr_(within[i, i + 1 :], errors[i], alpha=-1)
        left[last:].addmm_(factor[first:last, last:].t(), errors, alpha=-1)
    before = torch.empty_like(weight)
    before[order] = left
    return result, before


def _inverse_factor(hessian: torch.Tensor) -> torch.Tensor:
    """The upper Cholesky factor of the damped Hessian's inverse. By row i, later rows compensate the error of row i."""
    damped = hessian.clone()
    damped.diagonal().add_(DAMPING * damped.diagonal().mean())
    return torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(damped)), upper=True)


def refitted(weight: torch.Tensor, inputs: torch.Tensor, missing: torch.Tensor, trust: float) -> torch.Tensor:
    """Ridge regression: the W [in, out] near `weight` for which inputs @ (W - weight) is nearest to `missing`.

    inputs: [tokens, in]. missing: [tokens, out]. A factor on a row of both weights its token.
    trust: divides the cost of a change of W. That cost is added to the squared error: the change's square times the
    mean over the inputs' columns of their square sums.
    """
    tokens, size = inputs.shape
    cost = inputs.pow(2).sum() / size / trust
    if tokens < size:  # the dual system is smaller
        gram = inputs @ inputs.t()
        gram.diagonal().add_(cost)
        return weight + inputs.t() @ _solved(gram, missing)
    gram = inputs.t() @ inputs
    gram.diagonal().add_(cost)
    return weight + _solved(gram, inputs.t() @ missing)


def _solved(positive: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return torch.cholesky_solve(right, torch.linalg.cholesky(positive))

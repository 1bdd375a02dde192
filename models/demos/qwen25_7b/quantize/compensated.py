"""Error-compensated rounding (GPTQ, arXiv 2210.17323) on block floats.

A weight [in, out] is rounded input row by input row; what a row's rounding adds to the outputs is taken away again, as
far as the inputs of a calibration text allow, by the rows that are not yet rounded. Rows and not columns, since the values
that share an exponent lie in a row.
"""

from typing import Callable

import torch

ROWS = 64  # rounded before the rows after them hear of it: one matrix product instead of 64 thin ones
DAMPING = 0.3  # of the mean of the Hessian's diagonal: how little the calibration text is trusted to be all there is


def hessian(inputs: torch.Tensor) -> torch.Tensor:
    """inputs [tokens, in] -> [in, in], half the second derivative of the mean squared error of inputs @ weight."""
    return inputs.t() @ inputs / len(inputs)


def compensated(
    weight: torch.Tensor, hessian: torch.Tensor, nearest: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """weight [in, out] -> the same of values that `nearest` gives for a row [out].

    The loudest inputs come first: their errors are the largest, and find the most rows to be made up for in.
    """
    order = hessian.diagonal().argsort(descending=True, stable=True)
    factor = _inverse_factor(hessian[order][:, order])
    left = weight[order]  # what is still to be rounded, errors of the rows before taken in
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
    return result


def _inverse_factor(hessian: torch.Tensor) -> torch.Tensor:
    """The upper Cholesky factor of the damped Hessian's inverse: row i says how rows after i make up for its error."""
    damped = hessian.clone()
    damped.diagonal().add_(DAMPING * damped.diagonal().mean())
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    return torch.linalg.cholesky(inverse, upper=True)

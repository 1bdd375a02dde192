"""A weight fitted anew to what its inputs have become: an 8-bit matrix takes up what 4 bits lost before it."""

import torch


def refitted(weight: torch.Tensor, inputs: torch.Tensor, missing: torch.Tensor, trust: float) -> torch.Tensor:
    """The weight W [in, out] near `weight` for which inputs @ (W - weight) is nearest to `missing` (ridge regression).

    inputs [tokens, in], missing [tokens, out]; rows of both may be scaled alike to say how much a token counts.
    trust: a change of W costs, beside the error left, its square times the mean square sum of an input over `trust`.
    """
    tokens, size = inputs.shape
    cost = inputs.pow(2).sum() / size / trust
    if tokens < size:  # the same by a smaller system
        gram = inputs @ inputs.t()
        gram.diagonal().add_(cost)
        return weight + inputs.t() @ _solved(gram, missing)
    gram = inputs.t() @ inputs
    gram.diagonal().add_(cost)
    return weight + _solved(gram, inputs.t() @ missing)


def _solved(positive: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return torch.cholesky_solve(right, torch.linalg.cholesky(positive))

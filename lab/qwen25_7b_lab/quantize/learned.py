"""Learned rounding: gate's and up's 4-bit codes by gradient descent (AdaRound, arXiv 2004.10568; AutoRound, arXiv
2309.05516).

Compensated rounding makes each column of gate and up right for itself. Only the layer's output counts, and there the
errors of columns can cancel. Descent starts at the compensated codes. It moves codes and down together, to make the
output's squared error smaller. Its down is not kept: the fit on all tokens, which comes after, is better.
"""

import torch
from golden_mesh.rounding import BLOCK
from torch.nn.functional import silu
from tqdm import trange

from .rounding import at_step, best_step

BATCH = 1024  # tokens of a step
CODE_RATE = 0.006  # Adam's first rate, in codes a step
DOWN_RATE = 3e-4  # in root mean squares of down
BETAS = 0.9, 0.99  # Adam's. The usual 0.999 remembers longer than a run is
REACH = 7.5  # codes: beyond, rounding and gradient change nothing


def learned_inputs(
    before: torch.Tensor,
    down: torch.Tensor,
    inputs: torch.Tensor,
    target: torch.Tensor,
    token_weights: torch.Tensor,
    steps: int,
) -> torch.Tensor:
    """Gate and up side by side, [hidden, 2 * mlp], in values of bfloat4_b.

    before: gate and up just before rounding, see `compensated`. down: [mlp, hidden].
    inputs: [tokens, hidden], of gate and up. target: [tokens, hidden], what the MLP should give.
    token_weights: [tokens, 1], a factor on a token's error. steps: of descent, 1 or more.
    """
    step = best_step(before)  # a code's step in each block, which does not change
    position = (before.unflatten(-1, (-1, BLOCK)) / step).clamp_(-REACH, REACH).requires_grad_()
    down = down.clone().requires_grad_()
    down_rate = DOWN_RATE * float(down.detach().pow(2).mean().sqrt())
    optimizer = torch.optim.Adam(
        [{"params": [position], "lr": CODE_RATE}, {"params": [down], "lr": down_rate}], betas=BETAS
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    random = torch.Generator().manual_seed(0)
    for _ in trange(steps, desc="learned rounding", leave=False, disable=None):
        tokens = torch.randint(len(inputs), (BATCH,), generator=random)
        values = _values(position.detach(), step).requires_grad_()
        down.grad = None
        with torch.enable_grad():
            gate, up = (inputs[tokens] @ values).chunk(2, dim=1)
            error = ((silu(gate) * up) @ down - target[tokens]) * token_weights[tokens]
            # The sum, not the mean, whose gradients would be smaller than Adam's epsilon.
            error.pow(2).sum().backward()
        # Straight through the rounding.
        position.grad = values.grad.unflatten(-1, (-1, BLOCK)) * step
        optimizer.step()
        schedule.step()
        position.data.clamp_(-REACH, REACH)
    return _values(position.detach(), step)


def _values(position: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """The weight [hidden, 2 * mlp] of positions in codes."""
    return at_step(position * step, step).flatten(-2)

"""Loud rotary pairs of K are made quiet, and the same pairs of Q loud: the scores stay what they are.

Qwen2.5-7B's K bias has pairs of norm 170 and more in its first and last layers, where a pair is around 2 elsewhere. In
an 8-bit cache sixteen neighbours share an exponent, so such a pair wipes out what the seven pairs beside it say. Rotary
embedding turns a pair within itself, so a pair of K divided by s and the same pair of Q times s give the same scores at
every position. That is folded into the weights and biases once and costs nothing on a chip.

The bias alone tells which pairs are loud: what the weights add is no louder than in other layers. A pair whose bias is
longer than LOUDEST is brought to it; all others keep their bits, so a model without such biases is not touched.
`python -m models.demos.qwen25_7b.quantize.keys` prints what it buys.
"""

import torch

# A power of two: a value's step in an 8-bit block doubles there. Of 8, 16 and 32 the best on the small checkpoint and on
# random weights with the 7B's K bias: at 8 the rounding of the now small rows of Wk begins to count.
LOUDEST = 16.0


def key_divisors(k_bias: torch.Tensor) -> torch.Tensor:
    """One head's k_bias [head_dim] -> [head_dim], 1 for a quiet pair, alike in a pair.

    Pairs are as Hugging Face has them: j and j + head_dim / 2.
    """
    halves = _computed(k_bias).view(2, -1)
    return (halves.norm(dim=0) / LOUDEST).clamp_min(1).repeat(2)


def quiet_key(rows: torch.Tensor, divisors: torch.Tensor) -> torch.Tensor:
    """Rows of Wk, or elements of its bias, of one head [head_dim, ...], divided by its divisors [head_dim]; their dtype."""
    return _scaled(rows, 1 / divisors)


def matching_query(rows: torch.Tensor, divisors: torch.Tensor) -> torch.Tensor:
    """The same of a query head that attends to that key: times the divisors."""
    return _scaled(rows, divisors)


def _scaled(rows: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    if (factors == 1).all():
        return rows
    return (_computed(rows) * factors.view(-1, *[1] * (rows.dim() - 1))).to(rows.dtype)


def _computed(x: torch.Tensor) -> torch.Tensor:
    """In the precision that factors are computed in."""
    return x.to(torch.promote_types(x.dtype, torch.float32))

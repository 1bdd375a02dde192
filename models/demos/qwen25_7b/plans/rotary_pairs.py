"""Rotary pairs of Q and K: their order in a head, and what is done about outlier pairs of K's bias (docs/numerics.md).

- Centered keys: softmax does not change when every key loses one constant vector. A slow pair's bias b is left out of
  QKV. After the rotation the chip adds R(position) b - b, which is short, from a table (TtCenteredKeys).
- Equalized keys: a pair of K divided by s, and the same pair of Q times s, give the same scores at every position. The
  factors are folded into weights and biases at load time. Pairs that are too fast to center are equalized, and the
  outliers of norm weights where keys are normalized head by head (Qwen3).

The bias alone decides, because the products of the weights are alike in all layers. A pair with a bias longer than
OUTLIER_NORM is centered where that makes it less than half as long. What is left is scaled to OUTLIER_NORM where it is
longer. All other pairs keep their bits.
"""

from typing import Optional

import torch

from ..config.rope import Rope

# A power of two, because the step of a value in an 8-bit block doubles there (docs/decisions.md compares limits).
OUTLIER_NORM = 16.0
# The most that may be left of a centered pair. Two operations of a layer should take off half of the bias at least.
MOST_LEFT = 0.5


def to_interleaved(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Reorder one head's `dim` (head_dim long) from rotary halves to adjacent rotary pairs.

    Hugging Face rotates the pair (j, j + head_dim/2). The op rotary_embedding_llama rotates the pair (2j, 2j + 1).
    So new[2j] = old[j] and new[2j + 1] = old[j + head_dim/2]. Wq, bq, Wk and bk get one order, which keeps every
    q . k. Values and Wo do not rotate and keep their order.
    """
    return x.index_select(dim, torch.arange(x.shape[dim]).view(2, -1).t().flatten())


def to_half_split(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Invert to_interleaved: from adjacent rotary pairs to Hugging Face's halves."""
    return x.index_select(dim, torch.arange(x.shape[dim]).view(-1, 2).t().flatten())


def centered_pairs(k_bias: torch.Tensor, rope: Optional[Rope]) -> torch.Tensor:
    """Return which elements of one key head's bias are centered: k_bias [head_dim] -> [head_dim] bool.

    Both elements of a pair, j and j + head_dim / 2, are alike. rope: None for a layer whose keys are not centered.
    """
    norms, left = _norms(k_bias), _left(k_bias, rope)
    return ((norms > OUTLIER_NORM) & (left <= MOST_LEFT * norms)).repeat(2)


def key_divisors(k_bias: torch.Tensor, rope: Optional[Rope]) -> torch.Tensor:
    """Return the divisors of one key head: k_bias [head_dim] -> [head_dim], 1 where no scaling is needed.

    Pairs and rope: as in centered_pairs.
    """
    centered = centered_pairs(k_bias, rope).view(2, -1)[0]
    norms = torch.where(centered, _left(k_bias, rope), _norms(k_bias))
    return (norms / OUTLIER_NORM).clamp_min(1).repeat(2)


def norm_divisors(k_norm: torch.Tensor) -> torch.Tensor:
    """Return the divisors of K's norm weight: [head_dim] -> [head_dim], powers of two, alike within a pair.

    A normalized key is as large as its norm weight, so these bring all pairs to about one length. A power of two
    changes no bit of a weight.
    """
    norms = _norms(k_norm)
    middle = norms.median().clamp_min(torch.finfo(norms.dtype).tiny)
    return (norms / middle).clamp(2.0**-8, 2.0**8).log2().round().exp2().repeat(2)


def _norms(k_bias: torch.Tensor) -> torch.Tensor:
    """[head_dim] -> [head_dim / 2]: the length of each pair."""
    return _to_compute_dtype(k_bias).view(2, -1).norm(dim=0)


def _left(k_bias: torch.Tensor, rope: Optional[Rope]) -> torch.Tensor:
    """[head_dim] -> [head_dim / 2]: the largest length of R(position) b - b in the context, for each pair."""
    norms = _norms(k_bias)
    if rope is None:
        return norms
    halves = (rope.turns(len(k_bias)) / 2).clamp(max=torch.pi / 2)
    return norms * 2 * halves.sin().to(norms.dtype)


def scale(rows: torch.Tensor, divisors: torch.Tensor, *, queries: bool) -> torch.Tensor:
    """Divide a key head's rows of Wk, or elements of its bias, [head_dim, ...] by its divisors [head_dim].

    queries: multiply instead, the rows of a query head that attends to the key head. In the dtype of `rows`.
    """
    factors = divisors if queries else 1 / divisors
    if (factors == 1).all():
        return rows
    return (_to_compute_dtype(rows) * factors.view(-1, *[1] * (rows.dim() - 1))).to(rows.dtype)


def _to_compute_dtype(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))

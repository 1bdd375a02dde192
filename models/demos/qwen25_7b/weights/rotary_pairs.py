"""The two orders in which a head's rotary pairs may lie."""

import torch


def to_interleaved(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Reorder one head's `dim` (head_dim long) from rotary halves to adjacent rotary pairs.

    Hugging Face turns the pair (j, j + head_dim/2), ttnn's rotary_embedding_llama the pair (2j, 2j + 1):
    new[2j] = old[j], new[2j + 1] = old[j + head_dim/2]. Done to Wq, bq, Wk and bk alike it leaves every
    q . k as it was; values and Wo do not rotate and keep their order.
    """
    return x.index_select(dim, torch.arange(x.shape[dim]).view(2, -1).t().flatten())


def to_half_split(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """The inverse of to_interleaved: rotary pairs to Hugging Face's halves."""
    return x.index_select(dim, torch.arange(x.shape[dim]).view(-1, 2).t().flatten())

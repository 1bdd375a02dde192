"""Hugging Face's tensors, turned into what the chips hold.

Every result is mesh-ordered: an even split of the dim that carries `tp` gives each chip its own part
(torch.chunk, ttnn.ShardTensorToMesh). Linear weights are [in, out], as ttnn.linear wants them; Hugging
Face keeps [out, in]. The dtype stays the checkpoint's.
"""

import torch

from ..config import ParallelPlan, QwenConfig
from .equalise import key_divisors, matching_query, quiet_key


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


def qkv_weight(
    wq: torch.Tensor, wk: torch.Tensor, wv: torch.Tensor, bk: torch.Tensor, config: QwenConfig, plan: ParallelPlan
) -> torch.Tensor:
    """One weight for a chip's queries, keys and values, equalised by K's bias.

    wq [num_attention_heads * head_dim, hidden], wk and wv [num_key_value_heads * head_dim, hidden]
    -> [hidden, tp * (q_heads + 2 * kv_heads) * head_dim], a chip's block being [queries | keys | values].
    """
    return _qkv_rows(wq, wk, wv, bk, config, plan).t().contiguous()


def qkv_bias(
    bq: torch.Tensor, bk: torch.Tensor, bv: torch.Tensor, config: QwenConfig, plan: ParallelPlan
) -> torch.Tensor:
    """The bias that belongs to qkv_weight: [1, tp * (q_heads + 2 * kv_heads) * head_dim]."""
    return _qkv_rows(bq, bk, bv, bk, config, plan).unsqueeze(0)


def o_weight(wo: torch.Tensor, config: QwenConfig, plan: ParallelPlan) -> torch.Tensor:
    """wo [hidden, num_attention_heads * head_dim] -> [tp * q_heads * head_dim, hidden].

    A zero head's rows are zero: whatever attention makes of its zero query (the mean of the values) is
    multiplied away. The chips' products add up to the whole.
    """
    heads = wo.t().unflatten(0, (config.num_attention_heads, config.head_dim))  # [heads, head_dim, hidden]
    nothing = heads.new_zeros(heads.shape[1:])
    return torch.cat([nothing if h is None else heads[h] for places in plan.q_head_of for h in places])


def mlp_in_weight(w: torch.Tensor, plan: ParallelPlan) -> torch.Tensor:
    """Gate or up projection: w [intermediate, hidden] -> [hidden, tp * mlp], zero columns last."""
    return _transposed_and_padded(w, rows=w.shape[1], columns=plan.tp * plan.mlp)


def mlp_out_weight(w: torch.Tensor, plan: ParallelPlan) -> torch.Tensor:
    """Down projection: w [hidden, intermediate] -> [tp * mlp, hidden], zero rows last."""
    return _transposed_and_padded(w, rows=plan.tp * plan.mlp, columns=w.shape[0])


def lm_head_weight(w: torch.Tensor, plan: ParallelPlan) -> torch.Tensor:
    """w [vocab_size, hidden] -> [hidden, tp * vocab], zero columns last: column t stays token t."""
    return _transposed_and_padded(w, rows=w.shape[1], columns=plan.tp * plan.vocab)


def _qkv_rows(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, k_bias: torch.Tensor, config: QwenConfig, plan: ParallelPlan
) -> torch.Tensor:
    """Rows (of weights) or elements (of biases) in mesh order, queries and keys equalised and as rotary pairs.

    q [num_attention_heads * head_dim, ...], k and v [num_key_value_heads * head_dim, ...]
    -> [tp * (q_heads + 2 * kv_heads) * head_dim, ...]
    """
    q, k, v = (x.unflatten(0, (-1, config.head_dim)) for x in (q, k, v))  # [heads, head_dim, ...]
    divisors = [key_divisors(head) for head in k_bias.unflatten(0, (-1, config.head_dim))]
    group = len(q) // len(k)  # queries that attend to one key
    zero_head = torch.zeros_like(q[0])
    rows = []
    for q_heads, kv_heads in zip(plan.q_head_of, plan.kv_head_of):
        for h in q_heads:
            rows.append(zero_head if h is None else to_interleaved(matching_query(q[h], divisors[h // group]), dim=0))
        rows += [to_interleaved(quiet_key(k[h], divisors[h]), dim=0) for h in kv_heads]
        rows += [v[h] for h in kv_heads]
    return torch.cat(rows)


def _transposed_and_padded(w: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """w [out, in] -> [rows, columns] that begins with w transposed and is zero elsewhere.

    The result is the only copy made: the LM head alone is 1.1 GB.
    """
    padded = w.new_zeros(rows, columns)
    padded[: w.shape[1], : w.shape[0]] = w.t()
    return padded

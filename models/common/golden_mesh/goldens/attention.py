"""Scaled dot product attention: prefill, chunked prefill, decode, and decode over a paged cache.

Queries may have more heads than keys and values: query head h reads key head h // (heads / kv heads).
"""

import torch
import torch.nn.functional as F

from models.common.golden_mesh.errors import GoldenError
from models.common.golden_mesh.registry import golden

POSITIONS_AT_A_TIME = 1 << 16  # keys of so many positions are widened to float32 at once: 64 MiB a kv head of 128


@golden("ttnn.transformer.scaled_dot_product_attention")
def scaled_dot_product_attention(
    input_tensor_q,
    input_tensor_k,
    input_tensor_v,
    *,
    attn_mask=None,
    is_causal=True,
    scale=None,
    program_config=None,
    cu_window_seqlens=None,
    output_concat_heads=False,
):
    """q [B, heads, S, dim], k and v [B, kv heads, S, dim], mask [B or 1, heads or 1, S, S] -> [B, heads, S, dim], or
    [B, 1, S, heads * dim] with output_concat_heads.

    cu_window_seqlens [windows + 1]: a row attends within its window alone; empty windows are none.
    """
    mask = None if attn_mask is None else attn_mask.float()
    if cu_window_seqlens is None:
        y = _attend(input_tensor_q, input_tensor_k, input_tensor_v, scale, mask, is_causal)
    else:
        y = _attend_within(input_tensor_q, input_tensor_k, input_tensor_v, scale, cu_window_seqlens.tolist(), is_causal)
    return y.transpose(1, 2).flatten(2).unsqueeze(1) if output_concat_heads else y


def _attend_within(q, k, v, scale, bounds: list[int], is_causal: bool) -> torch.Tensor:
    if bounds[0] != 0 or bounds[-1] != q.shape[2] or sorted(bounds) != bounds:
        raise GoldenError(f"cu_window_seqlens must ascend from 0 to the {q.shape[2]} rows of q, got {bounds}")
    windows = [slice(*pair) for pair in zip(bounds, bounds[1:]) if pair[0] < pair[1]]
    return torch.cat([_attend(q[:, :, w], k[:, :, w], v[:, :, w], scale, None, is_causal) for w in windows], dim=2)


def _attend(q, k, v, scale, mask=None, is_causal=False) -> torch.Tensor:
    q, k, v = q.float(), k.float(), v.float()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=True)


@golden("ttnn.transformer.chunked_scaled_dot_product_attention")
def chunked_scaled_dot_product_attention(
    input_tensor_q,
    input_tensor_k,
    input_tensor_v,
    page_table_tensor,
    chunk_start_idx=None,
    *,
    chunk_start_idx_tensor=None,
    scale=None,
    program_config=None,
):
    """Causal. q [B, heads, C, dim] at positions chunk_start_idx on, cache [blocks, kv heads, size, dim]."""
    start = int(chunk_start_idx_tensor.reshape(-1)[0]) if chunk_start_idx is None else chunk_start_idx
    rows = input_tensor_q.shape[2]
    lengths = torch.full((len(input_tensor_q),), start + rows)
    k, v = (_gather(cache, page_table_tensor, lengths) for cache in (input_tensor_k, input_tensor_v))
    visible = torch.ones(rows, start + rows, dtype=torch.bool).tril(start)
    return _attend(input_tensor_q, k, v, scale, visible)


def _gather(cache: torch.Tensor, page_table: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Each user's first positions, in order, out of its blocks of cache [blocks, kv heads, size, dim].

    [B, kv heads, longest, dim]; what lies there beyond a user's own length means nothing.
    """
    size = cache.shape[2]
    longest = int(lengths.max())
    blocks = page_table[: len(lengths), : -(-longest // size)].long()
    needed = torch.arange(blocks.shape[1]) * size < lengths[:, None]
    missing = needed & ((blocks < 0) | (blocks >= len(cache)))
    if longest > blocks.shape[1] * size or missing.any():
        raise GoldenError(
            f"attention to {longest} positions in blocks {blocks[needed].unique().tolist()}: the page table has "
            f"{page_table.shape[1]} blocks a user, the cache {len(cache)} blocks of {size} positions"
        )
    return cache[blocks.masked_fill(~needed, 0)].transpose(1, 2).flatten(2, 3)[:, :, :longest]


@golden("ttnn.transformer.scaled_dot_product_attention_decode")
def scaled_dot_product_attention_decode(
    input_tensor_q,
    input_tensor_k,
    input_tensor_v,
    *,
    is_causal=True,
    attn_mask=None,
    cur_pos=(),
    cur_pos_tensor=None,
    scale=None,
    program_config=None,
    out,
):
    """q [1, B, heads, dim], k and v [B, kv heads, length, dim] -> [1, B, heads, dim]"""
    capacity = input_tensor_k.shape[2]
    positions = torch.tensor(list(cur_pos)) if cur_pos_tensor is None else cur_pos_tensor.reshape(-1)
    lengths = _lengths(input_tensor_q, positions, is_causal, capacity)
    if lengths.max() > capacity:
        raise GoldenError(f"attention to {int(lengths.max())} positions of a cache that has {capacity} a user")

    def keys_and_values(users):
        return (cache[users, :, : int(lengths[users].max())] for cache in (input_tensor_k, input_tensor_v))

    return _decode(input_tensor_q, keys_and_values, lengths, attn_mask, scale, out)


@golden("ttnn.transformer.paged_scaled_dot_product_attention_decode")
def paged_scaled_dot_product_attention_decode(
    input_tensor_q,
    input_tensor_k,
    input_tensor_v,
    page_table_tensor,
    *,
    is_causal=True,
    attn_mask=None,
    cur_pos_tensor=None,
    scale=None,
    program_config=None,
    out,
):
    """q [1, B, heads, dim], k and v [blocks, kv heads, size, dim], page table [B, pages] -> [1, B, heads, dim]"""
    capacity = page_table_tensor.shape[-1] * input_tensor_k.shape[2]
    positions = None if cur_pos_tensor is None else cur_pos_tensor.reshape(-1)
    lengths = _lengths(input_tensor_q, positions, is_causal, capacity)

    def keys_and_values(users):
        return (_gather(cache, page_table_tensor[users], lengths[users]) for cache in (input_tensor_k, input_tensor_v))

    return _decode(input_tensor_q, keys_and_values, lengths, attn_mask, scale, out)


def _lengths(q, positions, is_causal: bool, capacity: int) -> torch.Tensor:
    """How many positions each user sees: those up to its own, or (not causal) all of its cache. 0: a skipped user."""
    users = q.shape[1]
    return positions[:users].long() + 1 if is_causal else torch.full((users,), capacity)


def _decode(q, keys_and_values, lengths, attn_mask, scale, out) -> torch.Tensor:
    """One query a user. A user at position -1 is skipped: its output is whatever lay there on a chip, zeros here."""
    heads, dim = q.shape[2:]
    result = torch.zeros(out.shape)
    active = lengths.nonzero().flatten()
    if not len(active):
        return result
    for users in active.split(max(1, POSITIONS_AT_A_TIME // int(lengths.max()))):
        k, v = (cache.float() for cache in keys_and_values(users))
        grouped = q[0, users].float().unflatten(1, (k.shape[1], -1))  # [B, kv heads, heads a kv head, dim]
        scores = grouped @ k.transpose(-1, -2) * (dim**-0.5 if scale is None else scale)
        if attn_mask is not None:
            scores = scores + attn_mask[0, users].float().unflatten(1, (k.shape[1], -1))
        hidden = torch.arange(k.shape[2]) >= lengths[users, None]
        scores = scores.masked_fill(hidden[:, None, None], float("-inf"))
        result[0, users, :heads] = (torch.softmax(scores, -1) @ v).flatten(1, 2)
    return result

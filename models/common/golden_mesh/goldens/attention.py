"""Scaled dot product attention: prefill, chunked prefill, decode, and decode over a paged cache.

Queries may have more heads than keys and values: query head h reads key head h // (heads / kv heads).
"""
import torch
import torch.nn.functional as F

from models.common.golden_mesh.errors import GoldenError
from models.common.golden_mesh.registry import golden


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
):
    """q [B, heads, S, dim], k and v [B, kv heads, S, dim], mask [B or 1, heads or 1, S, S] -> [B, heads, S, dim]"""
    mask = None if attn_mask is None else attn_mask.float()
    return _attend(input_tensor_q, input_tensor_k, input_tensor_v, scale, mask, is_causal)


def _attend(q, k, v, scale, mask=None, is_causal=False) -> torch.Tensor:
    q, k, v = q.float(), k.float(), v.float()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=True)


def _gather(cache: torch.Tensor, blocks: torch.Tensor, length: int) -> torch.Tensor:
    """The first `length` positions that lie in `blocks` of cache [blocks, kv heads, size, dim]: [1, kv heads, length, dim]"""
    size = cache.shape[2]
    used = blocks[: -(-length // size)].long()
    if length > len(blocks) * size or used.min() < 0 or used.max() >= len(cache):
        raise GoldenError(
            f"attention to {length} positions in blocks {used.tolist()} of a cache with {len(cache)} blocks of {size}"
        )
    return cache[used].transpose(0, 1).flatten(1, 2)[None, :, :length]


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
    """q [B, heads, C, dim] at positions chunk_start_idx on, over a paged cache [blocks, kv heads, size, dim], causal."""
    start = int(chunk_start_idx_tensor.reshape(-1)[0]) if chunk_start_idx is None else chunk_start_idx
    rows = input_tensor_q.shape[2]
    visible = torch.ones(rows, start + rows, dtype=torch.bool).tril(start)
    users = []
    for q, blocks in zip(input_tensor_q.split(1), page_table_tensor):
        k, v = (_gather(cache, blocks, start + rows) for cache in (input_tensor_k, input_tensor_v))
        users.append(_attend(q, k, v, scale, visible))
    return torch.cat(users)


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
    positions = list(cur_pos) if cur_pos_tensor is None else cur_pos_tensor.reshape(-1).tolist()

    def keys_and_values(user, length):
        if length > input_tensor_k.shape[2]:
            raise GoldenError(f"user {user} attends to {length} positions; its cache has {input_tensor_k.shape[2]}")
        return (cache[user : user + 1, :, :length] for cache in (input_tensor_k, input_tensor_v))

    length = input_tensor_k.shape[2]
    return _decode(input_tensor_q, keys_and_values, length, is_causal, attn_mask, positions, scale, out)


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
    """q [1, B, heads, dim], k and v [blocks, kv heads, size, dim], page table [B, blocks a user] -> [1, B, heads, dim]"""
    positions = [] if cur_pos_tensor is None else cur_pos_tensor.reshape(-1).tolist()

    def keys_and_values(user, length):
        return (_gather(cache, page_table_tensor[user], length) for cache in (input_tensor_k, input_tensor_v))

    length = page_table_tensor.shape[-1] * input_tensor_k.shape[2]
    return _decode(input_tensor_q, keys_and_values, length, is_causal, attn_mask, positions, scale, out)


def _decode(q, keys_and_values, length, is_causal, attn_mask, positions, scale, out) -> torch.Tensor:
    """One query a user, to positions up to and with its own (causal), or to all `length` of its cache under a mask.

    A user at position -1 is skipped; its output is whatever lay there on a chip, zeros here.
    """
    result = torch.zeros(out.shape)
    heads = q.shape[2]
    for user in range(q.shape[1]):
        if is_causal and positions[user] == -1:
            continue
        k, v = keys_and_values(user, positions[user] + 1 if is_causal else length)
        mask = None if attn_mask is None else attn_mask[:1, user, :heads].float().unsqueeze(2)
        result[0, user, :heads] = _attend(q[0, user, None, :, None], k, v, scale, mask)[0, :, 0]
    return result

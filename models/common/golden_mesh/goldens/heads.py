"""Splitting a fused QKV projection into heads and joining heads again, for prefill and for decode."""

import torch
import ttnn

from models.common.golden_mesh.errors import GoldenError
from models.common.golden_mesh.registry import golden


@golden("ttnn.experimental.nlp_create_qkv_heads")
def nlp_create_qkv_heads(input, input_kv=None, *, num_heads, num_kv_heads=None, transpose_k_heads=True, configs=None):
    """[B, 1, S, (heads + 2 kv heads) * dim] -> q [B, heads, S, dim], k (transposed: [B, kv heads, dim, S]), v.

    Of an input that lies in shards of some columns each core takes its own queries, keys and values, in this order.
    """
    num_kv_heads = num_kv_heads or num_heads
    if input_kv is None:
        dim = input.shape[-1] // (num_heads + 2 * num_kv_heads)
        q, k, v = _by_shard(input, configs and configs["input"], dim, (num_heads, num_kv_heads, num_kv_heads))
    else:
        dim = input_kv.shape[-1] // (2 * num_kv_heads)
        q, (k, v) = input, _by_shard(input_kv, configs and configs["input_kv"], dim, (num_kv_heads, num_kv_heads))
    q, k, v = _heads(q, num_heads), _heads(k, num_kv_heads), _heads(v, num_kv_heads)
    return q, (k.transpose(-1, -2) if transpose_k_heads else k).contiguous(), v


def _by_shard(
    x: torch.Tensor, config: ttnn.MemoryConfig | None, dim: int, heads: tuple[int, ...]
) -> list[torch.Tensor]:
    """x [..., sum(heads) * dim] cut into one tensor for each of `heads`, of which every shard has an equal part."""
    width = x.shape[-1]
    shards = -(-width // config.shard_spec.shape[1]) if config and config.is_sharded() else 1
    if any(count % shards for count in heads):
        raise GoldenError(f"nlp_create_qkv_heads: {heads} heads in {shards} shards of columns: each needs as many")
    parts = x.unflatten(-1, (shards, -1)).split([count * dim // shards for count in heads], -1)
    return [part.flatten(-2) for part in parts]


def _heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[B, 1, S, heads * dim] -> [B, heads, S, dim]"""
    batch, _, rows, width = x.shape
    return x.reshape(batch, rows, heads, width // heads).transpose(1, 2).contiguous()


@golden("ttnn.experimental.nlp_create_qkv_heads_decode")
def nlp_create_qkv_heads_decode(
    input_tensor,
    *,
    num_heads,
    num_kv_heads=None,
    overlap_qk_coregrid=True,
    batch_offset=None,
    slice_size=None,
):
    """[1, 1, B, (heads + 2 kv heads) * dim] -> q [1, B, heads, dim], k and v [1, B, kv heads, dim]."""
    num_kv_heads = num_kv_heads or num_heads
    users = input_tensor[0, 0]
    if batch_offset is not None:
        start = int(batch_offset.reshape(-1)[0])
        users = users[start : start + slice_size]
    heads = users.reshape(1, len(users), num_heads + 2 * num_kv_heads, -1)
    return tuple(part.contiguous() for part in heads.split([num_heads, num_kv_heads, num_kv_heads], 2))


@golden("ttnn.experimental.nlp_concat_heads")
def nlp_concat_heads(input_tensor):
    """[B, heads, S, dim] -> [B, 1, S, heads * dim]"""
    return input_tensor.transpose(1, 2).flatten(2).unsqueeze(1)


@golden("ttnn.experimental.nlp_concat_heads_decode")
def nlp_concat_heads_decode(input_tensor, *, num_heads, out):
    """[1, B, heads padded to a tile, dim] -> [1, 1, B padded to a tile, num_heads * dim]"""
    users = input_tensor[0, :, :num_heads].flatten(1)
    if users.shape[-1] != out.shape[-1]:
        raise GoldenError(f"nlp_concat_heads_decode: {num_heads} heads asked for of {list(input_tensor.shape)}")
    result = users.new_zeros(out.shape)
    result[0, 0, : len(users)] = users
    return result

"""Split a fused QKV projection into heads, and join heads: in prefill, in decode, and the ops of single models."""

import torch
import ttnn

from golden_mesh.errors import GoldenError
from golden_mesh.hazards import meet
from golden_mesh.hazards.checks import checks
from golden_mesh.registry import golden, golden_table


@golden("ttnn.experimental.nlp_create_qkv_heads")
def nlp_create_qkv_heads(input, input_kv=None, *, num_heads, num_kv_heads=None, transpose_k_heads=True, configs=None):
    """Split a QKV projection [B, 1, S, (heads + 2 kv heads) * dim].

    - q is [B, heads, S, dim].
    - k is [B, kv heads, S, dim], or transposed [B, kv heads, dim, S].
    - v is [B, kv heads, S, dim].

    Each core of a width-sharded input holds the queries, keys and values of its own heads, in this order.
    """
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    if input_kv is None:
        dim = input.shape[-1] // (num_heads + 2 * num_kv_heads)
        q, k, v = _by_shard(input, configs and configs["input"], dim, (num_heads, num_kv_heads, num_kv_heads))
    else:
        dim = input_kv.shape[-1] // (2 * num_kv_heads)
        q, (k, v) = (input, _by_shard(input_kv, configs and configs["input_kv"], dim, (num_kv_heads, num_kv_heads)))
    q, k, v = _heads(q, num_heads, dim), _heads(k, num_kv_heads, dim), _heads(v, num_kv_heads, dim)
    return q, (k.transpose(-1, -2) if transpose_k_heads else k).contiguous(), v


def _by_shard(
    x: torch.Tensor, config: ttnn.MemoryConfig | None, dim: int, heads: tuple[int, ...]
) -> list[torch.Tensor]:
    """Cut x [..., sum(heads) * dim] into a tensor for each of `heads`. Every shard holds an equal part of each."""
    width = x.shape[-1]
    shards = -(-width // config.shard_spec.shape[1]) if config and config.is_sharded() else 1
    parts = x.unflatten(-1, (shards, -1)).split([count * dim // shards for count in heads], -1)
    return [part.flatten(-2) for part in parts]


def _heads(x: torch.Tensor, heads: int, dim: int) -> torch.Tensor:
    """[B, 1, S, heads * dim] -> [B, heads, S, dim]. Without heads (num_kv_heads=0: q alone) it is empty."""
    return x.squeeze(1).unflatten(-1, (heads, dim)).transpose(1, 2).contiguous()


@golden("ttnn.experimental.nlp_create_qkv_heads_decode")
def nlp_create_qkv_heads_decode(input_tensor, num_heads, num_kv_heads, batch_offset, slice_size):
    """[1, 1, B, (heads + 2 kv heads) * dim] -> q [1, B, heads, dim], k and v [1, B, kv heads, dim]."""
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    users = input_tensor[0, 0]
    if batch_offset is not None:
        start = int(batch_offset.reshape(-1)[0])
        users = users[start : start + slice_size]
    heads = users.reshape(1, len(users), num_heads + 2 * num_kv_heads, -1)
    return tuple(part.contiguous() for part in heads.split([num_heads, num_kv_heads, num_kv_heads], 2))


@golden("ttnn.experimental.nlp_create_q_heads_split")
def nlp_create_q_heads_split(input, num_heads, split_head_dim):
    """[B, 1, S, heads * dim] -> [B, heads, S, split_head_dim] and [B, heads, S, dim - split_head_dim]."""
    heads = input.squeeze(1).unflatten(-1, (num_heads, -1)).transpose(1, 2)
    return heads[..., :split_head_dim].clone(), heads[..., split_head_dim:].clone()


@golden("ttnn.experimental.nlp_concat_heads_decode")
def nlp_concat_heads_decode(input_tensor, num_heads, out):
    """[1, B, heads padded to a tile, dim] -> [1, 1, B padded to a tile, num_heads * dim]"""
    users = input_tensor[0, :, :num_heads].flatten(1)
    if users.shape[-1] != out.shape[-1]:
        raise GoldenError(f"nlp_concat_heads_decode: {num_heads} heads requested of {list(input_tensor.shape)}")
    result = users.new_zeros(out.shape)
    result[0, 0, : len(users)] = users
    return result


FALCON_DIM, VIT_HEADS = 64, 12  # constants of the two models' ops


@checks(
    None, "ttnn.experimental.split_query_key_value_and_split_heads", "ttnn.experimental.nlp_create_qkv_heads_vit"
)  # fmt: skip
def _interleaved(**given) -> None:
    """Refuse a sharded input: the order of heads in its shards is not known."""
    tensor = next(iter(given.values()))
    if tensor.memory_config().is_sharded():
        raise GoldenError(f"heads of a sharded tensor {list(tensor.shape)} have no golden: give it an interleaved one")


@golden("ttnn.transformer.split_query_key_value_and_split_heads")
def split_query_key_value_and_split_heads(
    input_tensor, kv_input_tensor, num_heads, num_kv_heads, transpose_key, configs
):
    """Split a QKV projection [B, S, (heads + 2 kv heads) * dim] into q, k and v as nlp_create_qkv_heads does.

    With kv_input_tensor, input_tensor holds q, and kv_input_tensor holds k and v. In a sharded input each kv head
    has its queries, its key and its value side by side.
    """
    how = dict(num_heads=num_heads, num_kv_heads=num_kv_heads, transpose_k_heads=transpose_key)
    if configs is not None and configs["input_tensor"].is_sharded():
        return create_qkv_heads(input_tensor.unsqueeze(1), **how)
    kv = None if kv_input_tensor is None else kv_input_tensor.unsqueeze(1)
    return nlp_create_qkv_heads(input_tensor.unsqueeze(1), kv, **how)


@golden("ttnn.experimental.create_qkv_heads")
def create_qkv_heads(input, num_heads, num_kv_heads, transpose_k_heads):
    """[B, 1, S, kv heads * (queries of a kv head, key, value) * dim] -> q, k, v as nlp_create_qkv_heads."""
    groups = num_heads if num_kv_heads is None else num_kv_heads
    grouped = input.unflatten(-1, (groups, num_heads // groups + 2, -1))
    parts = grouped.split([num_heads // groups, 1, 1], -2)
    q, k, v = (part.flatten(-3, -2).squeeze(1).transpose(1, 2).contiguous() for part in parts)
    return q, (k.transpose(-1, -2) if transpose_k_heads else k).contiguous(), v


_ROWS = {
    # [B, heads, S, dim] -> [B, 1, S, heads * dim]
    "ttnn.experimental.nlp_concat_heads ttnn.experimental.concatenate_heads": (
        lambda input_tensor: input_tensor.transpose(1, 2).flatten(2).unsqueeze(1)
    ),
    # [B, heads, S, dim] -> [B, S, heads * dim]
    "ttnn.transformer.concatenate_heads": lambda input_tensor: input_tensor.transpose(1, 2).flatten(2),
    # [heads, S, S, dim] -> [1, S, S, heads * dim]
    "ttnn.experimental.nlp_concat_heads_boltz": lambda input_tensor: input_tensor.permute(1, 2, 0, 3).flatten(2)[None],
    # [B, 1, S, (heads + 2) * 64] -> q [B, heads, S, 64], k and v [B, 1, S, 64]
    "ttnn.experimental.nlp_create_qkv_heads_falcon7b": lambda input: nlp_create_qkv_heads(
        input, num_heads=input.shape[-1] // FALCON_DIM - 2, num_kv_heads=1, transpose_k_heads=False
    ),
    # [B, 1, S, 3 * 12 * dim] -> q, k and v [B, 12, S, dim]
    "ttnn.experimental.nlp_create_qkv_heads_vit": lambda input: nlp_create_qkv_heads(
        input, num_heads=VIT_HEADS, transpose_k_heads=False
    ),
    # positions of a cache: [B, heads, length, dim] -> [B, heads, end - start, dim]
    "ttnn.experimental.nlp_kv_cache_load_slice": lambda input_tensor, seq_len_start, seq_len_end: input_tensor[
        :, :, seq_len_start:seq_len_end
    ].clone(),
    # [B, 1, S, 3 * heads * dim] -> q and v [B, heads, S, dim], k [B, heads, dim, S]
    "ttnn.experimental.split_query_key_value_and_split_heads": lambda input_tensor, num_heads: nlp_create_qkv_heads(
        input_tensor, num_heads=num_heads
    ),
}
golden_table(_ROWS)


@golden("ttnn.experimental.rotate_half")
def rotate_half(input):
    """(x0, x1) -> (-x1, x0), halves of the last dimension."""
    if input.dtype == torch.float32:
        meet("rotate_half of float32", "ttnn.experimental.rotate_half", f"a tensor {list(input.shape)}")
    first, second = input.chunk(2, -1)
    return torch.cat((-second, first), -1)

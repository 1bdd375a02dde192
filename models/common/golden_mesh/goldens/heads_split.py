"""Heads as older models split and join them: ttnn.transformer's ops and the experimental ones of one model each."""

import torch

from models.common.golden_mesh.errors import GoldenError
from models.common.golden_mesh.goldens.heads import nlp_create_qkv_heads
from models.common.golden_mesh.hazard_checks import checks
from models.common.golden_mesh.registry import golden

FALCON_DIM, VIT_HEADS = 64, 12  # what the ops of these two models have built in


@checks("ttnn.transformer.split_query_key_value_and_split_heads", "ttnn.experimental.nlp_create_qkv_heads_vit")
def _interleaved(op: str, given: dict) -> None:
    """A sharded input holds q, k and v of each core's own heads side by side, which nobody here computes."""
    tensor = given.get("input_tensor", given.get("input"))
    if tensor.memory_config().is_sharded():
        raise GoldenError(f"{op} of a sharded tensor {list(tensor.shape)} has no golden: give it an interleaved one")


@golden("ttnn.transformer.split_query_key_value_and_split_heads")
def split_query_key_value_and_split_heads(
    input_tensor,
    kv_input_tensor=None,
    *,
    num_heads,
    num_kv_heads=None,
    transpose_key=True,
    use_falcon7b_backend=False,
):
    """[B, S, (heads + 2 kv heads) * dim] -> q [B, heads, S, dim], k (transposed: [B, kv heads, dim, S]), v.

    q may come by itself, and k and v in kv_input_tensor.
    """
    return nlp_create_qkv_heads(
        input_tensor.unsqueeze(1),
        None if kv_input_tensor is None else kv_input_tensor.unsqueeze(1),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        transpose_k_heads=transpose_key,
    )


@golden("ttnn.transformer.concatenate_heads")
def concatenate_heads(input_tensor):
    """[B, heads, S, dim] -> [B, S, heads * dim]"""
    return input_tensor.transpose(1, 2).flatten(2)


@golden("ttnn.experimental.nlp_create_qkv_heads_falcon7b")
def nlp_create_qkv_heads_falcon7b(input):
    """[B, 1, S, (heads + 2) * 64] -> q [B, heads, S, 64], k and v [B, 1, S, 64]."""
    heads = input.shape[-1] // FALCON_DIM - 2
    return nlp_create_qkv_heads(input, num_heads=heads, num_kv_heads=1, transpose_k_heads=False)


@golden("ttnn.experimental.nlp_create_qkv_heads_vit")
def nlp_create_qkv_heads_vit(input):
    """[B, 1, S, 3 * 12 * dim] -> q, k and v [B, 12, S, dim]."""
    return nlp_create_qkv_heads(input, num_heads=VIT_HEADS, transpose_k_heads=False)


@golden("ttnn.experimental.nlp_kv_cache_load_slice")
def nlp_kv_cache_load_slice(input_tensor, *, seq_len_start, seq_len_end):
    """Positions of a cache: [B, heads, length, dim] -> [B, heads, end - start, dim]."""
    return input_tensor[:, :, seq_len_start:seq_len_end].clone()


@golden("ttnn.experimental.rotate_half")
def rotate_half(input):
    """(x0, x1) -> (-x1, x0), halves of the last dimension."""
    first, second = input.chunk(2, -1)
    return torch.cat((-second, first), -1)

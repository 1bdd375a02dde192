"""Attention to latents (MLA), whose values are the first columns of the keys, and joint attention of two sequences."""

import torch

from models.common.golden_mesh.errors import GoldenError
from models.common.golden_mesh.goldens.attention import (
    chunked_scaled_dot_product_attention,
    scaled_dot_product_attention,
)
from models.common.golden_mesh.goldens.attention_decode import (
    paged_scaled_dot_product_attention_decode,
    scaled_dot_product_attention_decode,
)
from models.common.golden_mesh.registry import golden


def _values(keys: torch.Tensor, head_dim_v: int, values: torch.Tensor | None = None) -> torch.Tensor:
    return keys[..., :head_dim_v] if values is None else values


@golden("ttnn.transformer.flash_mla_prefill")
def flash_mla_prefill(
    input_tensor_q,
    input_tensor_k,
    head_dim_v,
    *,
    attn_mask=None,
    is_causal=True,
    scale=None,
    program_config=None,
    compute_kernel_config=None,
):
    """q [B, heads, S, dim], k [B, kv heads, S, dim] -> [B, heads, S, head_dim_v]. In head_dim_v's place the values may
    stand, by position."""
    values = head_dim_v if isinstance(head_dim_v, torch.Tensor) else _values(input_tensor_k, head_dim_v)
    return scaled_dot_product_attention(
        input_tensor_q, input_tensor_k, values, attn_mask=attn_mask, is_causal=is_causal, scale=scale,
        program_config=program_config, compute_kernel_config=compute_kernel_config,
    )  # fmt: skip


@golden("ttnn.transformer.chunked_flash_mla_prefill")
def chunked_flash_mla_prefill(
    input_tensor_q,
    input_tensor_k,
    head_dim_v,
    page_table_tensor,
    chunk_start_idx,
    *,
    scale=None,
    program_config=None,
    compute_kernel_config=None,
):
    """Causal. q [B, heads, C, dim] at positions chunk_start_idx on, cache [blocks, 1, size, dim]."""
    return chunked_scaled_dot_product_attention(
        input_tensor_q, input_tensor_k, _values(input_tensor_k, head_dim_v), page_table_tensor, chunk_start_idx,
        scale=scale, program_config=program_config, compute_kernel_config=compute_kernel_config,
    )  # fmt: skip


@golden("ttnn.transformer.flash_multi_latent_attention_decode")
def flash_multi_latent_attention_decode(
    input_tensor_q,
    input_tensor_k,
    input_tensor_v=None,
    head_dim_v=None,
    *,
    is_causal=True,
    attn_mask=None,
    cur_pos=(),
    cur_pos_tensor=None,
    scale=None,
    program_config=None,
    compute_kernel_config=None,
    dtypes,
    out,
):
    """q [1, B, heads, dim], cache [B, 1, length, dim] -> [1, B, heads, head_dim_v]"""
    return scaled_dot_product_attention_decode(
        input_tensor_q, input_tensor_k, _values(input_tensor_k, head_dim_v, input_tensor_v), is_causal=is_causal,
        attn_mask=attn_mask, cur_pos=cur_pos, cur_pos_tensor=cur_pos_tensor, scale=scale, program_config=program_config,
        compute_kernel_config=compute_kernel_config, dtypes=dtypes, out=out,
    )  # fmt: skip


@golden("ttnn.transformer.paged_flash_multi_latent_attention_decode")
def paged_flash_multi_latent_attention_decode(
    input_tensor_q,
    input_tensor_k,
    input_tensor_v=None,
    head_dim_v=None,
    page_table_tensor=None,
    *,
    is_causal=True,
    attn_mask=None,
    cur_pos_tensor=None,
    scale=None,
    program_config=None,
    compute_kernel_config=None,
    dtypes,
    out,
):
    """q [1, B, heads, dim], cache [blocks, 1, size, dim] -> [1, B, heads, head_dim_v]"""
    return paged_scaled_dot_product_attention_decode(
        input_tensor_q, input_tensor_k, _values(input_tensor_k, head_dim_v, input_tensor_v), page_table_tensor,
        is_causal=is_causal, attn_mask=attn_mask, cur_pos_tensor=cur_pos_tensor, scale=scale,
        program_config=program_config, compute_kernel_config=compute_kernel_config, dtypes=dtypes, out=out,
    )  # fmt: skip


@golden("ttnn.transformer.joint_scaled_dot_product_attention")
def joint_scaled_dot_product_attention(
    input_tensor_q,
    input_tensor_k,
    input_tensor_v,
    joint_tensor_q,
    joint_tensor_k,
    joint_tensor_v,
    *,
    joint_strategy,
    program_config,
    scale=None,
    compute_kernel_config=None,
):
    """Two sequences, one behind the other, see each other and themselves whole.

    -> [B, heads, S, dim], [B, heads, L, dim]
    """
    if joint_strategy != "rear":
        raise GoldenError(f"joint attention with joint_strategy={joint_strategy!r} has no golden: only 'rear' has")
    pairs = ((input_tensor_q, joint_tensor_q), (input_tensor_k, joint_tensor_k), (input_tensor_v, joint_tensor_v))
    result = scaled_dot_product_attention(
        *(torch.cat(pair, 2) for pair in pairs), is_causal=False, scale=scale, program_config=program_config,
        compute_kernel_config=compute_kernel_config,
    )  # fmt: skip
    return result.split([input_tensor_q.shape[2], joint_tensor_q.shape[2]], 2)

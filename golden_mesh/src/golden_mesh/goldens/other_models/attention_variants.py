"""Attention to latents (MLA), joint attention of two sequences, and the separate products of decode attention.

The values of MLA are the first columns of the keys.
"""

from typing import Callable

import torch

from golden_mesh.arithmetic.kernel import Kernel
from golden_mesh.arithmetic.product import TILE, product
from golden_mesh.goldens import attention_decode
from golden_mesh.goldens.attention import Attention, chunked_scaled_dot_product_attention, scaled_dot_product_attention
from golden_mesh.registry import collective, golden


@golden("ttnn.transformer.flash_mla_prefill", passes=scaled_dot_product_attention)
def flash_mla_prefill(input_tensor_q, input_tensor_k, head_dim_v, input_tensor_v, paddings, **others):
    """q [B, heads, S, dim], k [B, kv heads, S, dim] -> [B, heads, S, head_dim_v].

    The third positional argument may be the values instead of head_dim_v.
    """
    given = head_dim_v if input_tensor_v is None else input_tensor_v
    values = given if isinstance(given, torch.Tensor) else input_tensor_k[..., :given]
    return scaled_dot_product_attention(input_tensor_q, input_tensor_k, values, paddings=paddings, **others)


@golden("ttnn.transformer.chunked_flash_mla_prefill", passes=chunked_scaled_dot_product_attention)
def chunked_flash_mla_prefill(input_tensor_q, input_tensor_k, head_dim_v, **others):
    """Causal. q [B, heads, C, dim] at positions chunk_start_idx on, cache [blocks, 1, size, dim]."""
    values = input_tensor_k[..., :head_dim_v]
    return chunked_scaled_dot_product_attention(input_tensor_q, input_tensor_k, values, **others)


def _of_latents(attend: Callable) -> Callable:
    def op(input_tensor_q, input_tensor_k, input_tensor_v, head_dim_v, dtypes, out, paddings, **others):
        """q [1, B, heads, dim], cache [B or blocks, 1, length, dim] -> [1, B, heads, head_dim_v]"""
        values = input_tensor_k[..., :head_dim_v] if input_tensor_v is None else input_tensor_v
        return attend(input_tensor_q, input_tensor_k, values, dtypes=dtypes, out=out, paddings=paddings, **others)

    return op


for _name, _attend in {
    "flash_multi_latent_attention_decode": attention_decode.scaled_dot_product_attention_decode,
    "paged_flash_multi_latent_attention_decode": attention_decode.paged_scaled_dot_product_attention_decode,
}.items():
    golden(f"ttnn.transformer.{_name}", passes=_attend)(_of_latents(_attend))


@golden("ttnn.transformer.joint_scaled_dot_product_attention", ignores="joint_strategy")
def joint_scaled_dot_product_attention(
    input_tensor_q, input_tensor_k, input_tensor_v, joint_tensor_q, joint_tensor_k, joint_tensor_v, program_config,
    scale, compute_kernel_config,
):  # fmt: skip
    """Attention of two sequences, the joint one at the rear, not causal -> [B, heads, S, dim], [B, heads, L, dim]"""
    pairs = ((input_tensor_q, joint_tensor_q), (input_tensor_k, joint_tensor_k), (input_tensor_v, joint_tensor_v))
    attend = Attention(program_config, compute_kernel_config, scale, input_tensor_q.shape[-1], joint=True)
    result = attend(*(torch.cat(pair, 2) for pair in pairs), start=None)
    return result.split([input_tensor_q.shape[2], joint_tensor_q.shape[2]], 2)


@collective(
    "ttnn.transformer.ring_joint_scaled_dot_product_attention", passes=joint_scaled_dot_product_attention,
    ignores="joint_strategy",
)  # fmt: skip
def ring_joint_scaled_dot_product_attention(
    input_tensor_q, input_tensor_k, input_tensor_v, joint_tensor_q, joint_tensor_k, joint_tensor_v, logical_n, dim, out,
    **others,
):  # fmt: skip
    """Joint attention of a sequence that is divided among the chips: [B, heads, N / chips, dim] a chip.

    Each chip's queries see the first logical_n keys of all chips and the joint sequence. Every chip holds the
    joint sequence. The third result is scratch memory of the kernel: its values are unknown.
    """
    length = int(logical_n[0].flatten()[0]) if isinstance(logical_n, list) else logical_n
    k, v = (torch.cat(x, dim)[:, :, :length] for x in (input_tensor_k, input_tensor_v))
    results = []
    for chip, q in enumerate(input_tensor_q):
        parts = [x[chip] if x is not None else q[:, :, :0] for x in (joint_tensor_q, joint_tensor_k, joint_tensor_v)]
        y = joint_scaled_dot_product_attention(q, k, v, *parts, **others)
        results.append((y[0], y[1].reshape(out[1].shape), torch.full(out[2].shape, torch.nan)))
    return results


@golden("ttnn.experimental.attn_matmul", "ttnn.experimental.group_attn_matmul")
def attn_matmul(input_tensor_a, input_tensor_b, compute_kernel_config):
    """a [1, heads, users, K] @ b [users, kv heads, K, N] -> [1, heads, users, N], each user by its own matrix.

    Without a config the ops take LoFi and a bfloat16 dest. The dest sums all of K before it is packed.
    """
    users, kv_heads, inner = input_tensor_b.shape[:3]
    rows = input_tensor_a[0].transpose(0, 1).unflatten(1, (kv_heads, -1))  # [users, kv heads, group, K]
    result = product(rows, input_tensor_b, Kernel.of(compute_kernel_config, "LoFi"), block=-(-inner // TILE))
    return result.reshape(users, -1, input_tensor_b.shape[-1]).transpose(0, 1).unsqueeze(0)


@golden("ttnn.experimental.attn_matmul_from_cache")
def attn_matmul_from_cache(input_tensor_a, input_tensor_b, num_tokens, transpose_hw, compute_kernel_config):
    """a @ b or a @ b transposed, with the first tokens of a cache b [users, 1, length, dim], in whole tiles."""
    rows = input_tensor_b[:, :, : -(-num_tokens // TILE) * TILE]
    return attn_matmul(input_tensor_a, rows.transpose(-1, -2) if transpose_hw else rows, compute_kernel_config)

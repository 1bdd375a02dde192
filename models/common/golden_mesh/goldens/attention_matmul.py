"""Products of decode attention, one user a row: a [1, heads, users, K] times each user's own matrix."""

import torch

from models.common.golden_mesh.arithmetic.kernel import Kernel
from models.common.golden_mesh.arithmetic.product import TILE, product
from models.common.golden_mesh.registry import golden


def _by_user(a: torch.Tensor, b: torch.Tensor, config) -> torch.Tensor:
    """a [1, heads, users, K] @ b [users, kv heads, K, N] -> [1, heads, users, N]; a KV head serves its group of heads.

    Without a config the ops take LoFi and a bfloat16 dest, which sums all of K before it is packed.
    """
    users, kv_heads, inner = b.shape[:3]
    rows = a[0].transpose(0, 1).unflatten(1, (kv_heads, -1))  # [users, kv heads, group, K]
    result = product(rows, b, Kernel.of(config, "LoFi"), block=-(-inner // TILE))
    return result.reshape(users, -1, b.shape[-1]).transpose(0, 1).unsqueeze(0)


@golden("ttnn.experimental.attn_matmul")
def attn_matmul(
    input_tensor_a, input_tensor_b, *, compute_with_storage_grid_size, dtype=None, compute_kernel_config=None
):
    """a [1, heads, users, K] @ b [users, 1, K, N] -> [1, heads, users, N]"""
    return _by_user(input_tensor_a, input_tensor_b, compute_kernel_config)


@golden("ttnn.experimental.group_attn_matmul")
def group_attn_matmul(
    input_tensor_a, input_tensor_b, *, compute_with_storage_grid_size, dtype=None, compute_kernel_config=None
):
    """a [1, heads, users, K] @ b [users, kv heads, K, N] -> [1, heads, users, N]"""
    return _by_user(input_tensor_a, input_tensor_b, compute_kernel_config)


@golden("ttnn.experimental.attn_matmul_from_cache")
def attn_matmul_from_cache(
    input_tensor_a,
    input_tensor_b,
    *,
    num_tokens,
    transpose_hw,
    compute_with_storage_grid_size,
    dtype=None,
    compute_kernel_config=None,
):
    """The first tokens of a cache b [users, 1, length, dim], in whole tiles: a @ b, or a @ b's transpose."""
    rows = input_tensor_b[:, :, : -(-num_tokens // TILE) * TILE]
    return _by_user(input_tensor_a, rows.transpose(-1, -2) if transpose_hw else rows, compute_kernel_config)

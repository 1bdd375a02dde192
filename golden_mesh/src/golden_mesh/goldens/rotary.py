"""Rotary position embedding.

The "llama" ops rotate neighboring pairs (x0, x1), (x2, x3): x * cos + (x @ T) * sin. T is a 32x32 matrix that swaps
each pair and changes a sign. The "hf" op and rotary_embedding rotate pairs (x_i, x_{i + dim/2}), Hugging Face's order.

In decode cos and sin are [1, B, 1 or 32, dim]: the kernels broadcast a tile's first row. Each step (the swap, each
product, the sum) passes bfloat16 to the next step.
"""

import torch
import torch.nn.functional as F

from golden_mesh.arithmetic import engine
from golden_mesh.arithmetic.kernel import Kernel
from golden_mesh.arithmetic.product import multiply
from golden_mesh.errors import GoldenError
from golden_mesh.registry import golden


def _sum_of_products(x, cos, swapped, sin, kernel: Kernel) -> torch.Tensor:
    """x * cos + swapped * sin"""
    products = (multiply(a, b, kernel, engine.BFLOAT16) for a, b in ((x, cos), (swapped, sin)))
    return engine.add(*map(engine.to_bfloat16_, products), engine.BFLOAT16)


def _matrix(trans_mat: torch.Tensor) -> torch.Tensor:
    """The 32x32 matrix. trans_mat [..., 32 * cores, 32] holds a copy for each core."""
    copies = trans_mat.reshape(-1, 32, 32)
    if len(copies) > 1 and not torch.equal(copies, copies[:1].expand_as(copies)):
        raise GoldenError("trans_mat holds different matrices for different cores: heads would turn differently")
    return copies[0].float()


@golden("ttnn.experimental.rotary_embedding_llama", stacks="input_tensor")
def rotary_embedding_llama(input_tensor, cos_cache, sin_cache, trans_mat, is_decode_mode, compute_kernel_config):
    """Decode: x [1, B, heads, dim], cos [1, B, 1, dim]. Prefill: x [B, heads, S, dim], cos [1, 1, >= S, dim]."""
    rows = 1 if is_decode_mode else input_tensor.shape[-2]
    cos, sin = cos_cache[:, :, :rows], sin_cache[:, :, :rows]
    kernel = Kernel.of(compute_kernel_config, "HiFi4")
    # Each column of the matrix has one entry, 1 or -1: the product has no sum.
    swapped = (engine.source_b(input_tensor, kernel).unflatten(-1, (-1, 32)) @ _matrix(trans_mat)).flatten(-2)
    return _sum_of_products(input_tensor, cos, engine.to_bfloat16_(swapped), sin, kernel)


@golden("ttnn.experimental.rotary_embedding_llama_fused_qk", stacks="q_input_tensor k_input_tensor")
def rotary_embedding_llama_fused_qk(
    q_input_tensor, k_input_tensor, cos_cache, sin_cache, trans_mat, compute_kernel_config
):
    """q [1, B, heads, dim], k [1, B, kv heads, dim], cos [1, 2B, 1, dim]: of q's cores, then of k's."""
    cos, sin = (table.split(q_input_tensor.shape[-3], 1) for table in (cos_cache, sin_cache))
    how = trans_mat, True, compute_kernel_config
    q = rotary_embedding_llama(q_input_tensor, cos[0], sin[0], *how)
    return q, rotary_embedding_llama(k_input_tensor, cos[1], sin[1], *how)


@golden("ttnn.experimental.rotary_embedding_hf")
def rotary_embedding_hf(input_tensor, cos_cache, sin_cache, is_decode_mode=False, *, compute_kernel_config):
    """Decode: x [1, B, heads, dim], cos [1, B, 1, dim]. Prefill: x [1, heads, S, dim], cos [1, 1, >= S, dim]."""
    rows = 1 if is_decode_mode else input_tensor.shape[-2]
    first, second = input_tensor.chunk(2, -1)
    swapped = torch.cat((-second, first), -1)
    kernel = Kernel.of(compute_kernel_config, "HiFi4")
    return _sum_of_products(input_tensor, cos_cache[:, :, :rows], swapped, sin_cache[:, :, :rows], kernel)


@golden("ttnn.experimental.rotary_embedding")
def rotary_embedding(input_tensor, cos_cache, sin_cache, token_index, compute_kernel_config, out):
    """x [B, heads, S, dim], cos [1, 1, >= S, dim], pairs as Hugging Face lays them out -> S padded to a tile.

    With a token_index, that row of cos rotates all of x [1, heads, users, dim]. The rows that fill the last
    tile are zeros here.
    """
    rows = input_tensor.shape[2]
    first, count = (0, rows) if token_index is None else (token_index, 1)
    cos, sin = (table[:, :, first : first + count] for table in (cos_cache, sin_cache))
    rotated = rotary_embedding_hf(input_tensor, cos, sin, compute_kernel_config=compute_kernel_config)
    return F.pad(rotated, (0, 0, 0, out.shape[2] - rows))

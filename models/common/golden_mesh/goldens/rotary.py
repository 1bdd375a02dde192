"""Rotary position embedding.

The "llama" ops turn neighbouring pairs (x0, x1), (x2, x3), ...: x * cos + (x @ T) * sin, where T is a 32x32 matrix that
swaps the two of a pair and changes a sign. The "hf" op turns pairs (x_i, x_{i + dim/2}), as Hugging Face lays them out.
"""

import torch

from models.common.golden_mesh.errors import GoldenError
from models.common.golden_mesh.registry import golden


def _turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    x = x.float()
    swapped = (x.unflatten(-1, (-1, 32)) @ matrix).flatten(-2)
    return x * cos.float() + swapped * sin.float()


def _matrix(trans_mat: torch.Tensor) -> torch.Tensor:
    """The one 32x32 matrix of which trans_mat [..., 32 * cores, 32] holds a copy for every core."""
    copies = trans_mat.reshape(-1, 32, 32)
    if len(copies) > 1 and not torch.equal(copies, copies[:1].expand_as(copies)):
        raise GoldenError("trans_mat holds different matrices for different cores: heads would turn differently")
    return copies[0].float()


def _per_user(table: torch.Tensor) -> torch.Tensor:
    """cos or sin in decode, [1, B, 1 or 32, dim] -> [1, B, 1, dim]: the kernel broadcasts a tile's first row."""
    return table[:, :, :1]


@golden("ttnn.experimental.rotary_embedding_llama")
def rotary_embedding_llama(input_tensor, cos_cache, sin_cache, trans_mat, *, is_decode_mode=False):
    """Decode: x [1, B, heads, dim], cos [1, B, 1, dim]. Prefill: x [B, heads, S, dim], cos [1, 1, >= S, dim]."""
    if is_decode_mode:
        return _turn(input_tensor, _per_user(cos_cache), _per_user(sin_cache), _matrix(trans_mat))
    rows = input_tensor.shape[2]
    return _turn(input_tensor, cos_cache[:, :, :rows], sin_cache[:, :, :rows], _matrix(trans_mat))


@golden("ttnn.experimental.rotary_embedding_llama_fused_qk")
def rotary_embedding_llama_fused_qk(q_input_tensor, k_input_tensor, cos_cache, sin_cache, trans_mat):
    """q [1, B, heads, dim], k [1, B, kv heads, dim], cos [1, 2B, 1, dim]: B entries for q's cores, then B for k's."""
    users = q_input_tensor.shape[1]
    cos, sin, matrix = _per_user(cos_cache), _per_user(sin_cache), _matrix(trans_mat)
    q = _turn(q_input_tensor, cos[:, :users], sin[:, :users], matrix)
    k = _turn(k_input_tensor, cos[:, users : 2 * users], sin[:, users : 2 * users], matrix)
    return q, k


@golden("ttnn.experimental.rotary_embedding_hf")
def rotary_embedding_hf(input_tensor, cos_cache, sin_cache, *, is_decode_mode=False):
    """Decode: x [1, B, heads, dim], cos [1, B, 1, dim]. Prefill: x [1, heads, S, dim], cos [1, 1, >= S, dim]."""
    if is_decode_mode:
        cos, sin = _per_user(cos_cache).float(), _per_user(sin_cache).float()
    else:
        cos, sin = (table[:, :, : input_tensor.shape[2]].float() for table in (cos_cache, sin_cache))
    x = input_tensor.float()
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin

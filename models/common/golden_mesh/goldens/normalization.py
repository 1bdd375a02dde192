"""RMS norm, layer norm and their distributed halves."""

import torch
import torch.nn.functional as F

from models.common.golden_mesh.registry import golden


def _scaled(x, weight, bias):
    """x [..., H] * weight + bias, either given as [1, 1, H/32, 32] row-major or [1, 1, 1, H]."""
    if weight is not None:
        x = x * weight.float().reshape(-1)
    return x if bias is None else x + bias.float().reshape(-1)


def _sum(input_tensor, residual_input_tensor):
    x = input_tensor.float()
    return x if residual_input_tensor is None else x + residual_input_tensor.float()


@golden("ttnn.rms_norm")
def rms_norm(input_tensor, *, epsilon=1e-12, weight=None, bias=None, residual_input_tensor=None, program_config=None):
    """x / rms(x) * weight over the last dimension, [..., H] -> [..., H]; x is input + residual."""
    x = _sum(input_tensor, residual_input_tensor)
    return _scaled(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon), weight, bias)


@golden("ttnn.layer_norm")
def layer_norm(
    input_tensor,
    *,
    epsilon=1e-12,
    weight=None,
    bias=None,
    residual_input_tensor=None,
    program_config=None,
    recip_tensor=None,
):
    """(x - mean) / std * weight + bias over the last dimension, [..., H] -> [..., H]; x is input + residual."""
    x = _sum(input_tensor, residual_input_tensor)
    return _scaled(F.layer_norm(x, x.shape[-1:], eps=epsilon), weight, bias)


@golden("ttnn.rms_norm_pre_all_gather")
def rms_norm_pre_all_gather(
    input_tensor,
    *,
    dtype=None,
    residual_input_tensor=None,
    program_config=None,
    use_2d_core_grid=None,
    fast_and_approximate_mode=False,
):
    """Each row's sum of squares, [..., H] -> [..., 32]: one tile, the sum in its first column."""
    x = _sum(input_tensor, residual_input_tensor)
    return F.pad(x.square().sum(-1, keepdim=True), (0, 31))


@golden("ttnn.rms_norm_post_all_gather")
def rms_norm_post_all_gather(
    input_tensor,
    stats,
    *,
    epsilon=1e-12,
    weight=None,
    bias=None,
    program_config=None,
    dtype=None,
    use_2d_core_grid=None,
):
    """The norm of a chip's columns [..., H] with every chip's statistics [..., 32 * chips]."""
    x = input_tensor.float()
    chips = stats.shape[-1] // 32
    squares = stats.float()[..., ::32].sum(-1, keepdim=True)
    return _scaled(x * torch.rsqrt(squares / (chips * x.shape[-1]) + epsilon), weight, bias)

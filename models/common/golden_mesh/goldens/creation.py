"""Tensors made on the device. Their shape is the real op's; every chip gets the same.

A constant is one value, expanded: an empty cache costs no host memory until it is written.
"""

import torch

from models.common.golden_mesh.registry import golden


@golden("ttnn.zeros")
def zeros(shape, dtype=None, layout=None, device=None, memory_config=None, *, out):
    return torch.zeros(()).expand(out.shape)


@golden("ttnn.ones")
def ones(shape, dtype=None, layout=None, device=None, memory_config=None, *, out):
    return torch.ones(()).expand(out.shape)


@golden("ttnn.full")
def full(shape, fill_value, dtype=None, layout=None, device=None, memory_config=None, optional_tensor=None, *, out):
    return torch.tensor(fill_value).expand(out.shape)


@golden("ttnn.zeros_like")
def zeros_like(tensor, dtype=None, layout=None, device=None, memory_config=None, optional_tensor=None, *, out):
    return torch.zeros(()).expand(out.shape)


@golden("ttnn.ones_like")
def ones_like(tensor, dtype=None, layout=None, device=None, memory_config=None, optional_tensor=None, *, out):
    return torch.ones(()).expand(out.shape)


@golden("ttnn.full_like")
def full_like(
    tensor, fill_value, dtype=None, layout=None, device=None, memory_config=None, optional_tensor=None, *, out
):
    return torch.tensor(fill_value).expand(out.shape)


@golden("ttnn.arange")
def arange(*bounds, start=0, end=None, step=1, dtype=None, device=None, layout=None):
    """As range(): (end), (start, end) or (start, end, step)."""
    if len(bounds) == 1:
        bounds = (start, bounds[0], step)
    elif len(bounds) == 2:
        bounds = (*bounds, step)
    return torch.arange(*(bounds or (start, end, step)))

"""Norms over images: group norm and batch norm, in float32, of which only the result is rounded."""

import torch

from models.common.golden_mesh.errors import GoldenError
from models.common.golden_mesh.registry import golden

TILE = 32


def _by_channel(x: torch.Tensor | None, channels: int, cores: int | None) -> torch.Tensor | None:
    """A weight or bias as [channels].

    It comes in rows of 32, dealt out over as many `cores` as share the channels, and each core's padded to whole rows
    (ttnn.create_group_norm_weight_bias_rm). None: as many as its size tells.
    """
    if x is None:
        return None
    if x.numel() == channels:
        return x.float().flatten()
    counts = [count for count in range(1, channels + 1) if channels % count == 0 and cores in (None, count)]
    fitting = [count for count in counts if count * -(-channels // count // TILE) * TILE == x.numel()]
    if len(fitting) != 1:
        raise GoldenError(
            f"ttnn.group_norm with a weight or bias {list(x.shape)} for {channels} channels has no golden: "
            f"{len(fitting)} ways to deal them out over cores fit its size, and one should"
        )
    return x.float().reshape(fitting[0], -1)[:, : channels // fitting[0]].flatten()


@golden("ttnn.group_norm")
def group_norm(
    input_tensor,
    *,
    num_groups,
    epsilon=1e-12,
    input_mask=None,
    weight=None,
    bias=None,
    dtype=None,
    core_grid=None,
    inplace=True,
    output_layout=None,
    num_out_blocks=None,
    negative_mask=None,
    use_welford=False,
    configs=None,
):
    """x [N, 1, H * W, C]: each image's groups of C / num_groups channels get mean 0 and deviation 1.

    The masks only tell the kernel which of a tile's columns are a group's.
    """
    channels = input_tensor.shape[-1]
    x = input_tensor.float().unflatten(-1, (num_groups, -1))
    variance, mean = torch.var_mean(x, (1, 2, 4), correction=0, keepdim=True)
    x = ((x - mean) * torch.rsqrt(variance + epsilon)).flatten(-2)
    shards = configs and configs["input_tensor"].shard_spec
    cores = channels // shards.shape[1] if shards else None
    weight, bias = (_by_channel(part, channels, cores) for part in (weight, bias))
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


@golden("ttnn.batch_norm")
def batch_norm(
    input, *, running_mean=None, running_var=None, training=False, eps=1e-5, momentum=0.1, weight=None, bias=None
):
    """(x - mean) / sqrt(var + eps) * weight + bias of x [N, C, H, W], all four [1, C, 1, 1]."""
    if training:
        raise GoldenError("ttnn.batch_norm with training=True has no golden")
    x = (input.float() - running_mean.float()) * torch.rsqrt(running_var.float() + eps)
    x = x if weight is None else x * weight.float()
    return x if bias is None else x + bias.float()

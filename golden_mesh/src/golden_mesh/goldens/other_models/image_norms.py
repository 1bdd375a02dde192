"""Norms of images: of each channel, and of groups of channels. The latter round only their results."""

import torch

from golden_mesh.arithmetic.product import TILE
from golden_mesh.errors import GoldenError
from golden_mesh.registry import golden


@golden("ttnn.batch_norm")
def batch_norm(input, running_mean, running_var, training, eps, momentum, weight, bias, rewrite):
    """(x - mean) / sqrt(var + eps) * weight + bias of x [N, C, H, W], all four [1, C, 1, 1].

    In training mean and variance are the batch's (the variance as mean(x * x) - mean * mean, divided by N * H * W), and
    the running ones move towards them by the momentum.
    """
    if training:
        running = {"running_mean": running_mean, "running_var": running_var}
        running_mean, running_var = _of_batch(input)
        for (name, old), new in zip(running.items(), (running_mean, running_var)):
            if old is not None:
                rewrite(name, (1 - momentum) * old.float() + momentum * new)
    x = (input.float() - running_mean.float()) * torch.rsqrt(running_var.float() + eps)
    x = x if weight is None else x * weight.float()
    return x if bias is None else x + bias.float()


def _of_batch(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean and variance of each channel, with each step's result in x's dtype, as float32."""
    step = lambda values: values.to(x.dtype).float()
    mean = lambda values: step(step(values.mean((2, 3), keepdim=True)).mean(0, keepdim=True))
    of_x, of_squares = mean(x.float()), mean(step(x.float() ** 2))
    return of_x, step(of_squares - step(of_x**2))


def _by_channel(x: torch.Tensor | None, channels: int, cores: int | None) -> torch.Tensor | None:
    """A weight or bias as [channels].

    `cores` share the channels; None: the size tells their number. Each core's channels are padded to rows of 32
    (ttnn.create_group_norm_weight_bias_rm).
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


@golden("ttnn.group_norm", ignores="inplace input_mask negative_mask num_out_blocks")
def group_norm(input_tensor, num_groups, epsilon, weight, bias, configs):
    """x [N, 1, H * W, C]: each image's groups of C / num_groups channels get mean 0 and deviation 1.

    The masks tell the kernel the columns of each group. They change no value.
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

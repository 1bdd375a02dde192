"""ttnn.batch_norm: each channel of images [N, C, H, W] by a mean and a variance."""

import torch

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

    def step(values: torch.Tensor) -> torch.Tensor:
        return values.to(x.dtype).float()

    def mean(values: torch.Tensor) -> torch.Tensor:
        return step(step(values.mean((2, 3), keepdim=True)).mean(0, keepdim=True))

    of_x, of_squares = mean(x.float()), mean(step(x.float() ** 2))
    return of_x, step(of_squares - step(of_x**2))

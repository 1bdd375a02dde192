"""RMS norm, layer norm and their distributed halves, step by step as their kernels take them.

With a float32 dest what a step leaves for the next is float32, of which the next unpacks eleven bits; else it is
bfloat16. Statistics are sums of a row through SrcB, so HiFi2 cuts what is summed to seven bits, and 1 / rms, too.
"""

import torch
import torch.nn.functional as F

from models.common.golden_mesh.arithmetic import engine
from models.common.golden_mesh.arithmetic.kernel import Kernel
from models.common.golden_mesh.arithmetic.product import product
from models.common.golden_mesh.registry import golden


def _left(x: torch.Tensor, kernel: Kernel) -> torch.Tensor:
    """What a step leaves in L1 for the next one. (A bfloat16 dest has been rounded already.)"""
    return x if kernel.wide else x.bfloat16()


def _sum(input_tensor, residual_input_tensor, kernel: Kernel) -> torch.Tensor:
    if residual_input_tensor is None:
        return input_tensor
    add = engine.add_in_float32_dest if kernel.wide else engine.add
    return add(input_tensor, residual_input_tensor)


def _sum_of_rows(x: torch.Tensor, kernel: Kernel) -> torch.Tensor:
    """[..., W] -> [..., 1], of what SrcB takes of x."""
    if kernel.wide:
        return engine.source_b(x, kernel).sum(-1, keepdim=True)
    return product(x, torch.ones(x.shape[-1], 1), kernel)


def _mean(x: torch.Tensor, kernel: Kernel, shard: int) -> torch.Tensor:
    """Means of rows, [..., 1]. shard: columns that one core has.

    A row on one core is divided by the vector unit. Sharded, the parts' sums are multiplied by 1 / shard and summed,
    and that by 1 / cores: both factors are cut to bfloat16, which makes the mean up to 0.8 % too small (0.2 % on 28 cores).
    """
    width = x.shape[-1]
    if shard >= width:
        return _sum_of_rows(x, kernel) / width
    parts = F.pad(x, (0, -width % shard)).unflatten(-1, (-1, shard))
    sums = _sum_of_rows(parts, kernel).squeeze(-1) * _cut(1 / shard)
    return _sum_of_rows(_left(sums, kernel), kernel) * _cut(1 / parts.shape[-2])


def _cut(factor: float) -> float:
    return engine.keep(torch.tensor(factor), 8).item()


def _normed(x: torch.Tensor, epsilon: float, kernel: Kernel, shard: int) -> torch.Tensor:
    """x / rms(x)"""
    squares = _left(engine.multiply(x, x, kernel), kernel)
    return _divided(x, _mean(squares, kernel, shard), epsilon, kernel)


def _divided(x: torch.Tensor, mean_square: torch.Tensor, epsilon: float, kernel: Kernel) -> torch.Tensor:
    factor = torch.rsqrt(engine.keep(mean_square.float(), engine.SRC_B) + epsilon)
    return engine.multiply(x, _left(factor, kernel), kernel)


def _scaled(x, weight, bias, kernel: Kernel) -> torch.Tensor:
    """x [..., H] * weight + bias."""
    if weight is not None:
        x = engine.multiply(_left(x, kernel), _row(weight, x.shape[-1]), kernel)
    return x if bias is None else _sum(_left(x, kernel), _row(bias, x.shape[-1]), kernel)


def _row(weight: torch.Tensor, width: int) -> torch.Tensor:
    """[width], of [..., 1, width], of [1, 1, width/32, 32] (row-major) or of whole tiles, whose first row it is."""
    return weight.reshape(-1)[:width]


def _shard(program_config, width: int) -> int:
    return getattr(program_config, "block_w", 0) * 32 or width


@golden("ttnn.rms_norm")
def rms_norm(
    input_tensor,
    *,
    epsilon=1e-12,
    weight=None,
    bias=None,
    residual_input_tensor=None,
    program_config=None,
    compute_kernel_config=None,
):
    """x / rms(x) * weight over the last dimension, [..., H] -> [..., H]; x is input + residual."""
    kernel = Kernel.of(compute_kernel_config, "HiFi4")
    x = _sum(input_tensor, residual_input_tensor, kernel)
    normed = _normed(x, epsilon, kernel, _shard(program_config, x.shape[-1]))
    return _scaled(normed, weight, bias, kernel)


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
    compute_kernel_config=None,
):
    """(x - mean) / std * weight + bias over the last dimension, [..., H] -> [..., H]; x is input + residual."""
    kernel = Kernel.of(compute_kernel_config, "HiFi4", wide=True)
    x = _sum(input_tensor, residual_input_tensor, kernel)
    shard = _shard(program_config, x.shape[-1])
    mean = _left(_mean(x, kernel, shard), kernel)
    centred = _sum(x, -mean, kernel)
    return _scaled(_normed(centred, epsilon, kernel, shard), weight, bias, kernel)


@golden("ttnn.rms_norm_pre_all_gather")
def rms_norm_pre_all_gather(
    input_tensor,
    *,
    dtype=None,
    residual_input_tensor=None,
    program_config=None,
    use_2d_core_grid=None,
    fast_and_approximate_mode=False,
    compute_kernel_config=None,
    configs=None,
):
    """Each row's sum of squares, [..., H] -> [..., 32]: one tile, the sum in its first column.

    Of a sharded tensor it is the mean: that is another kernel, and only its own other half reads it right.
    """
    kernel = Kernel.of(compute_kernel_config, "HiFi4")
    x = _sum(input_tensor, residual_input_tensor, kernel)
    squares = _left(engine.multiply(x, x, kernel), kernel)
    width = x.shape[-1]
    mean = _mean(squares, kernel, _shard(program_config, width))
    return F.pad(mean if _is_sharded(configs) else mean * width, (0, 31))


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
    compute_kernel_config=None,
    configs=None,
):
    """The norm of a chip's columns [..., H] with every chip's statistics [..., 32 * chips]."""
    kernel = Kernel.of(compute_kernel_config, "HiFi4")
    (square,) = _gathered(stats, 1, input_tensor.shape[-1], configs, kernel)
    return _scaled(_divided(input_tensor, square, epsilon, kernel), weight, bias, kernel)


def _is_sharded(configs) -> bool:
    return bool(configs) and configs["input_tensor"].is_sharded()


def _gathered(stats: torch.Tensor, tiles: int, width: int, configs, kernel: Kernel) -> list[torch.Tensor]:
    """Means over all chips' columns, [..., 1] each, of `tiles` statistics a chip: one in the first column of each tile.

    Sums over `width` columns, which are divided by all of them; of a sharded tensor means, which are averaged with a
    factor that is cut to bfloat16.
    """
    firsts = engine.source_b(stats[..., ::32], kernel).unflatten(-1, (-1, tiles))
    chips = firsts.shape[-2]
    totals = firsts.sum(-2)
    means = totals * _cut(1 / chips) if _is_sharded(configs) else totals / (chips * width)
    return list(means.split(1, -1))


@golden("ttnn.layer_norm_pre_all_gather")
def layer_norm_pre_all_gather(
    input_tensor,
    *,
    dtype=None,
    residual_input_tensor=None,
    program_config=None,
    recip_tensor=None,
    fast_and_approximate_mode=False,
    compute_kernel_config=None,
    configs=None,
):
    """Each row's sum of squares and its sum, [..., H] -> [..., 64]: the first columns of two tiles.

    Of a sharded tensor its mean and the mean of its squares, in this order.
    """
    kernel = Kernel.of(compute_kernel_config, "HiFi4")
    x = _sum(input_tensor, residual_input_tensor, kernel)
    squares = _left(engine.multiply(x, x, kernel), kernel)
    if _is_sharded(configs):
        shard = _shard(program_config, x.shape[-1])
        found = [_mean(part, kernel, shard) for part in (x, squares)]
    else:
        found = [_sum_of_rows(part, kernel) for part in (squares, x)]
    return torch.cat([F.pad(part, (0, 31)) for part in found], -1)


@golden("ttnn.layer_norm_post_all_gather")
def layer_norm_post_all_gather(
    input_tensor,
    stats,
    *,
    epsilon=1e-12,
    weight=None,
    bias=None,
    program_config=None,
    dtype=None,
    compute_kernel_config=None,
    configs=None,
):
    """The norm of a chip's columns [..., H] with every chip's statistics [..., 64 * chips]."""
    kernel = Kernel.of(compute_kernel_config, "HiFi4")
    square, mean = _gathered(stats, 2, input_tensor.shape[-1], configs, kernel)
    if _is_sharded(configs):
        square, mean = mean, square
    centred = _sum(input_tensor, -_left(mean, kernel), kernel)
    return _scaled(_divided(centred, square - mean * mean, epsilon, kernel), weight, bias, kernel)

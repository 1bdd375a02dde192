"""RMS norm, layer norm and their distributed halves in the steps of their kernels.

With a float32 dest a step passes float32 to the next step, which unpacks eleven bits. Else it passes
bfloat16. Sums of rows go through SrcB: HiFi2 cuts the terms and 1 / rms to seven bits.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.arithmetic import engine
from golden_mesh.arithmetic.kernel import Kernel
from golden_mesh.arithmetic.parts import constant
from golden_mesh.arithmetic.product import TILE, multiply, sums_of_rows, sums_of_tiles
from golden_mesh.arithmetic.vector import inverse_root
from golden_mesh.goldens.activations import activate
from golden_mesh.registry import golden


def _left(x: torch.Tensor, kernel: Kernel) -> torch.Tensor:
    """A step's result in L1. A bfloat16 dest is rounded already."""
    return x if kernel.wide else x.bfloat16()


def _sum(input_tensor, residual_input_tensor, kernel: Kernel) -> torch.Tensor:
    if residual_input_tensor is None:
        return input_tensor
    return engine.add_in_dest(input_tensor, residual_input_tensor, kernel)


def _mean(x: torch.Tensor, kernel: Kernel, program_config, configs) -> torch.Tensor:
    """Means of rows, [..., 1].

    The vector unit divides the sum of a row on one core. If the row is sharded, each part's terms are multiplied
    by cores / width, and the parts' sums by 1 / cores. Both factors are bfloat16, so the mean is up to 0.4 % off.
    Each part's sum lies in a tile of its own, so the engine aligns none of them to another. In a grid of several lines
    the sums of the first line's cores meet the other lines' sums.
    """
    width, shard = x.shape[-1], getattr(program_config, "block_w", 0) * TILE
    if not 0 < shard < width:
        mean = sums_of_rows(x, kernel) / width
        return mean if kernel.wide else engine.keep(mean, engine.BFLOAT16)
    x = F.pad(x, (0, -width % shard)) if width % shard else x
    parts = x.unflatten(-1, (-1, shard))
    cores = parts.shape[-2]
    sums = _left(sums_of_rows(parts, kernel, nearest(cores / width)).squeeze(-1), kernel)
    lines = sums.unflatten(-1, (-1, _cores_of_a_line(configs["input_tensor"].shard_spec, cores)))
    adders = _from_own_core(sums.shape[:-1].numel(), lines.shape[-1], program_config.block_h)
    lines = lines.gather(-1, adders.view(*sums.shape[:-1], 1, -1).expand_as(lines))
    first, others = lines[..., 0, :], lines[..., 1:, :]
    if others.numel():
        first = torch.cat([first, _left(sums_of_tiles(others, kernel, 1.0), kernel).squeeze(-1)], -1)
    return sums_of_tiles(first, kernel, nearest(1 / cores))


def _cores_of_a_line(spec: ttnn.ShardSpec, cores: int) -> int:
    """Cores that add a row's parts first: a line, if the grid has several. Columns of shards have one stage."""
    grid = spec.grid.bounding_box().grid_size()
    in_lines = spec.orientation == ttnn.ShardOrientation.ROW_MAJOR and grid.x > 1 and grid.x * grid.y == cores
    return grid.x if in_lines else cores


@lru_cache(64)
def _from_own_core(rows: int, cores: int, block_h: int) -> torch.Tensor:
    """The order of each row's adder, [rows, cores]: cores share the rows of tiles, and start with themselves."""
    row_of_tiles = torch.arange(rows) // TILE % block_h
    adder = row_of_tiles // -(-block_h // cores)
    return (adder[:, None] + torch.arange(cores)) % cores


@lru_cache(64)
def nearest(number: float) -> float:
    """A number as most hosts hand it to a kernel: bfloat16, to nearest even."""
    return torch.tensor(number).bfloat16().item()


def _normed(x: torch.Tensor, epsilon: float, kernel: Kernel, program_config, configs) -> torch.Tensor:
    """x / rms(x)"""
    squares = _left(multiply(x, x, kernel), kernel)
    return _divided(x, _mean(squares, kernel, program_config, configs), epsilon, kernel)


def _divided(x: torch.Tensor, mean_square: torch.Tensor, epsilon: float, kernel: Kernel) -> torch.Tensor:
    epsilon = constant(engine.cut_number(epsilon))
    factor = inverse_root(engine.add_in_dest(mean_square.float(), epsilon, kernel), kernel.approximate)
    return multiply(x, _left(factor, kernel), kernel)


def _scaled(x, weight, bias, kernel: Kernel) -> torch.Tensor:
    """x [..., H] * weight + bias."""
    if weight is not None:
        x = multiply(_left(x, kernel), _row(weight, x.shape[-1]), kernel)
    return x if bias is None else _sum(_left(x, kernel), _row(bias, x.shape[-1]), kernel)


def _row(weight: torch.Tensor, width: int) -> torch.Tensor:
    """[width] of [..., 1, width], [1, 1, width / 32, 32] (row-major), or whole tiles with the weight in row 0."""
    return weight.reshape(-1)[:width]


@golden("ttnn.rms_norm")
def rms_norm(
    input_tensor, epsilon, weight, bias, residual_input_tensor, program_config, compute_kernel_config, configs
):
    """x / rms(x) * weight over the last dimension, [..., H] -> [..., H]; x is input + residual."""
    kernel = Kernel.of(compute_kernel_config, "HiFi4", approximate=True)
    x = _sum(input_tensor, residual_input_tensor, kernel)
    return _scaled(_normed(x, epsilon, kernel, program_config, configs), weight, bias, kernel)


@golden("ttnn.experimental.dit_rms_norm_unary_fused", passes=rms_norm)
def dit_rms_norm_unary_fused(activation, configs, **others):
    """rms_norm, and an activation of it in float32."""
    return activate(rms_norm(configs=configs, **others).float(), activation)


@golden("ttnn.layer_norm")
def layer_norm(
    input_tensor, epsilon, weight, bias, residual_input_tensor, program_config, compute_kernel_config, configs
):
    """(x - mean) / std * weight + bias over the last dimension, [..., H] -> [..., H]; x is input + residual."""
    kernel = Kernel.of(compute_kernel_config, "HiFi4", wide=True)
    x = _sum(input_tensor, residual_input_tensor, kernel)
    mean = _left(_mean(x, kernel, program_config, configs), kernel)
    centered = _sum(x, -mean, kernel)
    return _scaled(_normed(centered, epsilon, kernel, program_config, configs), weight, bias, kernel)


def _with_squares(x, residual, kernel: Kernel, configs, rewrite) -> tuple[torch.Tensor, torch.Tensor]:
    """(x + residual, its squares)"""
    total = _sum(x, residual, kernel)
    if residual is not None and _is_sharded(configs):
        rewrite("input_tensor", total)  # that kernel adds in place
    return total, _left(multiply(total, total, kernel), kernel)


@golden("ttnn.rms_norm_pre_all_gather")
def rms_norm_pre_all_gather(
    input_tensor, residual_input_tensor, program_config, compute_kernel_config, configs, rewrite
):
    """Each row's sum of squares, [..., H] -> [..., 32]: one tile, the sum in its first column.

    A sharded tensor has another kernel, which gives the mean. Only that kernel's second half reads the mean.
    """
    kernel = Kernel.of(compute_kernel_config, "HiFi4")
    x, squares = _with_squares(input_tensor, residual_input_tensor, kernel, configs, rewrite)
    mean, width = _mean(squares, kernel, program_config, configs), x.shape[-1]
    return F.pad(mean if _is_sharded(configs) else mean * width, (0, 31))


@golden("ttnn.rms_norm_post_all_gather")
def rms_norm_post_all_gather(input_tensor, stats, epsilon, weight, bias, compute_kernel_config, configs):
    """The norm of a chip's columns [..., H] with every chip's statistics [..., 32 * chips]."""
    kernel = Kernel.of(compute_kernel_config, "HiFi4", approximate=True)
    (square,) = _gathered(stats, 1, input_tensor.shape[-1], configs, kernel)
    return _scaled(_divided(input_tensor, square, epsilon, kernel), weight, bias, kernel)


def _is_sharded(configs) -> bool:
    return bool(configs) and configs["input_tensor"].is_sharded()


def _gathered(stats: torch.Tensor, tiles: int, width: int, configs, kernel: Kernel) -> list[torch.Tensor]:
    """Return means over all chips' columns, [..., 1] each.

    There are `tiles` statistics a chip, each in the first column of a tile. The statistics are sums over
    `width` columns, and the factor of their average is cut to bfloat16. Statistics of a sharded tensor are means: their
    factor is the nearest bfloat16.
    """
    firsts = stats[..., ::32].unflatten(-1, (-1, tiles))
    chips = firsts.shape[-2]
    factor = nearest(1 / chips) if _is_sharded(configs) else engine.cut_number(1 / (chips * width))
    return [sums_of_tiles(each.float(), kernel, factor) for each in firsts.unbind(-1)]


@golden("ttnn.layer_norm_pre_all_gather")
def layer_norm_pre_all_gather(
    input_tensor, residual_input_tensor, program_config, compute_kernel_config, configs, rewrite
):
    """Each row's sum of squares and its sum, [..., H] -> [..., 64]: the first columns of two tiles.

    For a sharded tensor: the mean, then the mean of the squares.
    """
    kernel = Kernel.of(compute_kernel_config, "HiFi4")
    x, squares = _with_squares(input_tensor, residual_input_tensor, kernel, configs, rewrite)
    if _is_sharded(configs):
        found = [_mean(part, kernel, program_config, configs) for part in (x, squares)]
    else:
        found = [sums_of_rows(part, kernel) for part in (squares, x)]
    return torch.cat([F.pad(part, (0, 31)) for part in found], -1)


@golden("ttnn.layer_norm_post_all_gather")
def layer_norm_post_all_gather(input_tensor, stats, epsilon, weight, bias, compute_kernel_config, configs):
    """The norm of a chip's columns [..., H] with every chip's statistics [..., 64 * chips]."""
    kernel = Kernel.of(compute_kernel_config, "HiFi4", approximate=True)
    square, mean = _gathered(stats, 2, input_tensor.shape[-1], configs, kernel)
    if _is_sharded(configs):
        square, mean = mean, square
    centered = _sum(input_tensor, -_left(mean, kernel), kernel)
    return _scaled(_divided(centered, square - mean * mean, epsilon, kernel), weight, bias, kernel)

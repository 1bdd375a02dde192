"""Pooling, scaling and sampling of images. Except for averages only the result is rounded.

Pooling takes [1, 1, N * H * W, C] or [N, H, W, C] and gives [1, 1, N * H' * W', C]. The other ops take [N, H, W, C].
"""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F

from golden_mesh.arithmetic import engine
from golden_mesh.arithmetic.kernel import Kernel
from golden_mesh.arithmetic.product import TILE, sums_of_columns
from golden_mesh.errors import GoldenError
from golden_mesh.goldens.other_models.conv import padding_of
from golden_mesh.registry import golden, golden_table


def _planes(x: torch.Tensor, batch: int, height: int, width: int, channels: int) -> torch.Tensor:
    """[N, C, H, W], float32"""
    return x.float().reshape(batch, height, width, -1)[..., :channels].permute(0, 3, 1, 2)


def _flat(planes: torch.Tensor, shape) -> torch.Tensor:
    """[N, C, H, W] as the op returns it, channels last."""
    return planes.permute(0, 2, 3, 1).reshape(shape)


def _extent(size: int, before: int, after: int, reach: int, stride: int, ceil_mode: bool) -> int:
    """The number of a window's places along one dimension. With ceil_mode the last may reach beyond the padding."""
    room = size + before + after - reach
    count = (-(-room // stride) if ceil_mode else room // stride) + 1
    return count - 1 if ceil_mode and (count - 1) * stride >= size + before else count


def _padded(x: torch.Tensor, kernel, stride, padding, dilation, ceil_mode: bool, value: float, beyond: float = 0.0):
    """x with its padding of `value`, and `beyond` in the rows and columns that the last windows need beyond it."""
    top, bottom, left, right = padding_of(padding)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel)]
    more = []
    for size, before, after, r, s in zip(x.shape[2:], (top, left), (bottom, right), reach, stride, strict=True):
        end = (_extent(size, before, after, r, s, ceil_mode) - 1) * s + r
        more.append(end - size - before - after)
    return F.pad(F.pad(x, (left, right, top, bottom), value=value), (0, more[1], 0, more[0]), value=beyond)


@golden("ttnn.max_pool2d")
def max_pool2d(
    input_tensor, batch_size, input_h, input_w, channels, kernel_size, stride, padding, dilation, ceil_mode,
    return_indices, out,
):  # fmt: skip
    """The largest value of each window, and with return_indices where it is: row * input_w + column."""
    x = _planes(input_tensor, batch_size, input_h, input_w, channels)
    x = _padded(x, kernel_size, stride, padding, dilation, ceil_mode, -torch.inf, -torch.inf)
    values, places = F.max_pool2d(x, tuple(kernel_size), tuple(stride), dilation=tuple(dilation), return_indices=True)
    if not return_indices:
        return _flat(values, out.shape)
    top, _, left, _ = padding_of(padding)
    rows, columns = places // x.shape[3] - top, places % x.shape[3] - left
    return _flat(values, out[0].shape), _flat(rows * input_w + columns, out[1].shape)


@golden("ttnn.avg_pool2d")
def avg_pool2d(
    input_tensor, batch_size, input_h, input_w, channels, kernel_size, stride, padding, ceil_mode, count_include_pad,
    divisor_override, compute_kernel_config, out,
):  # fmt: skip
    """Each window's sum, divided by its size. With count_include_pad the padding counts."""
    x = _planes(input_tensor, batch_size, input_h, input_w, channels)
    how = (kernel_size, stride, padding, (1, 1), ceil_mode)
    counted = _padded(torch.ones_like(x[:1, :1]), *how, float(count_include_pad))
    counts = F.avg_pool2d(counted, tuple(kernel_size), tuple(stride), divisor_override=1)
    if divisor_override:
        counts = torch.full_like(counts, divisor_override)
    kernel = Kernel.of(compute_kernel_config, "HiFi4")
    return _averages(_padded(x, *how, 0.0), kernel_size, stride, counts, kernel).reshape(out.shape)


def _averages(x, size, stride, counts, kernel: Kernel) -> torch.Tensor:
    """Averages [places, C] of the windows of x [N, C, H, W]; counts [1, 1, H', W'].

    The matrix engine multiplies by 1 / count, cut to bfloat16. More than 32 elements are summed in a float32 dest.
    """
    kernel = replace(kernel, wide=kernel.wide or size[0] * size[1] > TILE)
    windows = x.unfold(2, size[0], stride[0]).unfold(3, size[1], stride[1])
    windows = windows.permute(0, 2, 3, 4, 5, 1).flatten(3, 4)  # [N, H', W', size, C]
    factors = engine.keep(1 / counts, engine.BFLOAT16)[0, 0, ..., None, None]
    same = (factors == factors[0, 0]).all()
    return sums_of_columns(windows, kernel, factors[0, 0].item() if same else factors)


def _adaptive(average: bool):
    def function(input_tensor, batch_size, input_h, input_w, channels, output_size, out):
        """torch's windows. A mean of unequal ones is rounded once."""
        x = _planes(input_tensor, batch_size, input_h, input_w, channels)
        if not average:
            return _flat(F.adaptive_max_pool2d(x, tuple(output_size)), out.shape)
        if input_h % output_size[0] or input_w % output_size[1]:
            return _flat(F.adaptive_avg_pool2d(x, tuple(output_size)), out.shape)
        size = input_h // output_size[0], input_w // output_size[1]
        counts = torch.full((1, 1, *output_size), float(size[0] * size[1]))
        return _averages(x, size, size, counts, Kernel.of(None, "HiFi4")).reshape(out.shape)

    return function


golden_table({"ttnn.adaptive_avg_pool2d": _adaptive(True), "ttnn.adaptive_max_pool2d": _adaptive(False)})


@golden("ttnn.upsample")
def upsample(input_tensor, scale_factor, mode):
    """[N, H, W, C] -> [N, H * scale, W * scale, C]. Bilinear coordinates are those of the pixels' centers."""
    scale = scale_factor if isinstance(scale_factor, (int, float)) else tuple(scale_factor)
    how = {"align_corners": False} if mode == "bilinear" else {}
    planes = input_tensor.float().permute(0, 3, 1, 2)
    return F.interpolate(planes, scale_factor=scale, mode=mode, **how).permute(0, 2, 3, 1)


@golden("ttnn.grid_sample")
def grid_sample(input_tensor, grid, mode, padding_mode, align_corners, batch_output_channels):
    """x [N, H, W, C] at grid [N, H', W', 2 * K] -> [N, H', W' * K, C], or [N, H', W', C * K].

    A place is (column, row), from -1 to 1; K places lie side by side.
    """
    planes = input_tensor.float().permute(0, 3, 1, 2)
    places = grid.float().unflatten(-1, (-1, 2))  # [N, H', W', K, 2]
    batch, height, width, count = places.shape[:4]
    how = dict(mode=mode, padding_mode=padding_mode, align_corners=align_corners)
    found = F.grid_sample(planes, places.flatten(2, 3), **how).permute(0, 2, 3, 1)
    return found.reshape(batch, height, width, -1) if batch_output_channels else found


@golden("ttnn.fold", ignores="output_shape collapse_output")
def fold(input, stride_h, stride_w, use_transpose_as_fold, padding, configs, out):
    """[N, H, W, C] -> [N, H / stride_h, W / stride_w, stride_h * stride_w * C]: neighbors become channels.

    - padding: [height, width], [top, bottom, left, right], or those and [channels before, channels after].
    - use_transpose_as_fold: the input is [N, C, H, W]. Of the padding it takes top, left and channels after. A sharded
      input has them on both sides, another at its end.
    """
    padding = tuple(padding)
    front, back = padding[4:] if len(padding) == 6 else (0, 0)
    top, bottom, left, right = padding_of(padding[:4])
    if use_transpose_as_fold:
        front, bottom, right = 0, top, left
        top, left = (top, left) if configs["input"].is_sharded() else (0, 0)
        input = input.permute(0, 2, 3, 1)
    x = F.pad(input, (front, back, left, right, top, bottom))
    if x.numel() != torch.Size(out.shape).numel():
        raise GoldenError(
            f"ttnn.fold has no golden for {list(input.shape)} (N, H, W, C) with padding {list(padding)} to "
            f"{list(out.shape)}: shard the image, or let the strides divide it"
        )
    x = x.unflatten(2, (-1, stride_w)).unflatten(1, (-1, stride_h))  # [N, H', h, W', w, C]
    return x.transpose(2, 3).flatten(3).reshape(out.shape)


ONE = 1 << 16  # rotate's kernels have coordinates in fixed point


@golden("ttnn.rotate")
def rotate(input_tensor, angle, center, fill, interpolation_mode):
    """Images [N, H, W, C] turned by `angle` degrees against the clock. Outside of them is `fill`.

    center: (x, y) from the image's corner, so the middle of 16 pixels is 8 (ttnn's page says 7.5).
    """
    height, width = input_tensor.shape[1:3]
    cos, sin = (int(f(math.radians(angle)) * ONE) for f in (math.cos, math.sin))
    x0, y0 = (int((at - 0.5) * ONE) for at in center or (width / 2, height / 2))
    y, x = torch.arange(height)[:, None] * ONE - y0, torch.arange(width) * ONE - x0
    x, y = ((x * cos - y * sin) >> 16) + x0, ((x * sin + y * cos) >> 16) + y0
    if interpolation_mode == "nearest":
        return _pixels(input_tensor, (y + ONE // 2) >> 16, (x + ONE // 2) >> 16, fill)
    right, below = (x % ONE / ONE)[..., None], (y % ONE / ONE)[..., None]
    rows = []
    for row in (y >> 16, (y >> 16) + 1):
        left, next_one = (_pixels(input_tensor, row, (x >> 16) + step, fill) for step in (0, 1))
        rows.append(left.float() * (1 - right) + next_one.float() * right)
    return rows[0] * (1 - below) + rows[1] * below


def _pixels(images: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, fill: float):
    """The pixels of all images [N, H, W, C] at rows and columns [H', W'], and `fill` outside."""
    height, width = images.shape[1:3]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    found = images[:, rows.clamp(0, height - 1), columns.clamp(0, width - 1)]
    return torch.where(inside[..., None], found, fill)

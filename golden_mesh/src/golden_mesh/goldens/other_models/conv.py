"""Convolutions, transposed ones and those of videos too, and the weights and biases that are prepared for them.

Images are [1, 1, N * H * W, C] or [N, H, W, C]. A weight is [out, in / groups, kernel height, kernel width],
on the host or on the device. A prepared weight is [1, 1, >= kernel * in, >= out]. Its rows here have the
order (kernel row, kernel column, input channel), with zeros between groups. A chip's order depends on the
input's shards. The order changes no result: only convolutions read prepared weights.
"""

from itertools import product as pairs_of

import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.arithmetic.kernel import Kernel
from golden_mesh.arithmetic.product import TILE, product
from golden_mesh.errors import GoldenError
from golden_mesh.goldens.activations import activate
from golden_mesh.goldens.matmul import biased
from golden_mesh.hazards.checks import checks
from golden_mesh.mesh.arguments import on_device
from golden_mesh.mesh.memory import Slot
from golden_mesh.registry import golden
from golden_mesh.rounding import round_to

_BAND = 1 << 22  # elements of an unfolded band of rows: 16 MiB of float32


def _tensor(value, dtypes: dict, name: str) -> tuple[torch.Tensor | None, ttnn.DataType | None]:
    """A weight or bias that is on the host or on the device, and its dtype."""
    if not isinstance(value, ttnn.Tensor):
        return value, dtypes.get(name)
    shards = [shard.to_torch() for shard in ttnn.get_device_tensors(value)]
    if any(not torch.equal(shard, shards[0]) for shard in shards):
        raise GoldenError(f"{name} is on the host and differs by chip: put it on the device first")
    return shards[0], value.dtype


def padding_of(padding) -> tuple[int, int, int, int]:
    """(top, bottom, left, right) of [height, width] or of all four."""
    if len(padding) == 4:
        return tuple(padding)
    return padding[0], padding[0], padding[1], padding[1]


def _padded(x: torch.Tensor, edges: tuple[int, int, int, int], conv_config) -> torch.Tensor:
    """x [N, H, W, C] with edges (left, right, top, bottom) of zeros, or of its outermost elements (padding_mode)."""
    mode = getattr(conv_config, "padding_mode", None)
    if mode is None or mode.name == "Zeros":
        return F.pad(x, (0, 0, *edges))
    return F.pad(x.permute(0, 3, 1, 2), edges, mode="replicate").permute(0, 2, 3, 1)


def dense(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """[out, in / groups, *kernel] -> [out, in, *kernel], with zeros between the groups."""
    inputs, outer = weight.shape[1], (0, 0) * (weight.dim() - 2)
    edges = [outer + (at * inputs, (groups - 1 - at) * inputs) for at in range(groups)]
    return torch.cat([F.pad(part, edge) for part, edge in zip(weight.chunk(groups), edges)])


def _by_group(prepared: torch.Tensor, kernel_size, inputs: int, groups: int) -> torch.Tensor:
    """[kh * kw * in, out] -> [groups, kh * kw * in / groups, out / groups], without the zeros."""
    taps = prepared.view(kernel_size[0] * kernel_size[1], inputs, -1)
    blocks = taps.unflatten(2, (groups, -1)).unflatten(1, (groups, -1))  # [taps, g, in, g, out]
    return blocks.diagonal(dim1=1, dim2=3).permute(3, 0, 1, 2).flatten(1, 2)


def _convolved(x: torch.Tensor, prepared: torch.Tensor, size, stride, dilation, groups: int, kernel: Kernel):
    """x [N, H, W, C], padded, by a prepared weight [kh * kw * C, out] -> [N, H', W', out]."""
    weight = _by_group(prepared, size, x.shape[-1], groups)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, size)]
    height, width = ((n - r) // s + 1 for n, r, s in zip(x.shape[1:3], reach, stride))
    band = max(1, _BAND // (width * weight.shape[1] * groups))
    images = []
    for image in x:
        rows = []
        for first in range(0, height, band):
            count = min(band, height - first)
            start = first * stride[0]
            part = image[start : start + (count - 1) * stride[0] + reach[0]]
            rows.append(_band(part, weight, size, stride, dilation, (count, width), kernel))
        images.append(torch.cat(rows))
    return torch.stack(images)


def _band(part, weight, size, stride, dilation, extent, kernel: Kernel) -> torch.Tensor:
    """Rows of one image [h, W, C] -> [h', W', out]: each place's neighborhood is a row of a matrix."""
    taps = []
    for down, right in pairs_of(range(size[0]), range(size[1])):
        rows = part[down * dilation[0] :: stride[0]][: extent[0]]
        taps.append(rows[:, right * dilation[1] :: stride[1]][:, : extent[1]])
    places = torch.stack(taps, 2).flatten(0, 1)  # [h' * W', taps, C]
    places = places.unflatten(2, (len(weight), -1)).permute(2, 0, 1, 3).flatten(2)
    block = -(-size[1] * part.shape[-1] // TILE)  # a row of the kernel
    result = product(places, weight, kernel, block=block)  # [groups, h' * W', out / groups]
    return result.transpose(0, 1).reshape(*extent, -1)


def _results(y, weight, bias: torch.Tensor | None, kernel: Kernel, conv_config, out):
    """The image with its bias and activation, and the prepared weight and bias where the op returns them."""
    bias = None if bias is None else bias.reshape(1, -1)[:, : y.shape[-1]]
    y = activate(biased(y, bias, kernel).float(), getattr(conv_config, "activation", None))
    if isinstance(out, Slot):
        return y.reshape(out.shape)
    prepared = [(weight, out[1]), (bias, out[2])] if len(out) == 3 else [(weight, out[1])]
    return y.reshape(out[0].shape), *(_enlarged(matrix, slot.shape) for matrix, slot in prepared)


def _enlarged(matrix: torch.Tensor, shape) -> torch.Tensor:
    """[rows, columns] -> [1, 1, more rows, more columns], zeros around."""
    below, right = (extent - own for extent, own in zip(shape[-2:], matrix.shape))
    if below < 0 or right < 0:
        raise GoldenError(f"a prepared weight {list(shape)} for a matrix {list(matrix.shape)}")
    return F.pad(matrix, (0, right, 0, below)).reshape(shape)


def _weights_dtype(conv_config, dtype: ttnn.DataType) -> ttnn.DataType:
    """The dtype of a prepared weight and of its bias, beside a weight of this dtype."""
    return getattr(conv_config, "weights_dtype", None) or dtype


def _weight(
    value, dtypes, conv_config, in_channels: int, out_channels: int, kernel_size, groups: int, mirror=None
) -> torch.Tensor:
    """[kh * kw * in, out] of a weight [out, in / groups, kh, kw], or of one that is prepared.

    mirror: of a transposed convolution, whose weight is [in, out / groups, kh, kw]. False: it is mirrored already.
    """
    weight, dtype = _tensor(value, dtypes, "weight_tensor")
    shape = (out_channels, in_channels // groups, *kernel_size)
    outputs, inputs, height, width = shape
    if mirror is not None and tuple(weight.shape) == (inputs * groups, outputs // groups, height, width):
        weight = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
        weight = weight.flip(2, 3) if mirror else weight
    if weight.shape[:2] == shape[:2] and weight[0, 0].numel() == height * width:
        prepared = dense(weight.reshape(shape).float(), groups).permute(2, 3, 1, 0).flatten(0, 2)
        return round_to(prepared, _weights_dtype(conv_config, dtype))
    rows = height * width * inputs * groups
    if weight.shape[-2] < rows or weight.shape[-1] < outputs:
        raise GoldenError(f"weight {list(weight.shape)}: neither {list(shape)} nor prepared for it")
    return weight.reshape(weight.shape[-2:])[:rows, :outputs]


@golden("ttnn.conv2d")
def conv2d(
    input_tensor, weight_tensor, in_channels, out_channels, batch_size, input_height, input_width, kernel_size, stride,
    padding, dilation, groups, bias_tensor, conv_config, compute_config, dtypes, out,
):  # fmt: skip
    """[1, 1, N * H * W, in] -> [1, 1, N * H' * W', out], then conv_config.activation. groups=0 means 1."""
    groups = max(groups, 1)
    weight = _weight(weight_tensor, dtypes, conv_config, in_channels, out_channels, kernel_size, groups)
    bias, _ = _tensor(bias_tensor, dtypes, "bias_tensor")
    x, _ = _tensor(input_tensor, {}, "input_tensor")
    x = x.reshape(batch_size, input_height, input_width, -1)[..., :in_channels]
    top, bottom, left, right = padding_of(padding)
    x = _padded(x.float(), (left, right, top, bottom), conv_config)
    _, dtype = _tensor(weight_tensor, dtypes, "weight_tensor")
    wide = dtypes.get("input_tensor") == dtype == ttnn.float32
    kernel = Kernel.of(compute_config, "HiFi4", wide=wide, in_l1=False)
    bias = None if bias is None else round_to(bias.float(), _weights_dtype(conv_config, dtype))
    y = _convolved(x, weight, kernel_size, stride, dilation, groups, kernel)
    return _results(y, weight, bias, kernel, conv_config, out)


@golden("ttnn.conv1d", passes=conv2d)
def conv1d(input_length, kernel_size, stride, padding, dilation, dtypes, out, **others):
    """[1, 1, N * L, in] -> [1, 1, N * L', out]: an image of one row."""
    ends = (padding, padding) if isinstance(padding, int) else tuple(padding)
    others |= dict(kernel_size=(1, kernel_size), stride=(1, stride), padding=(0, 0, *ends), dilation=(1, dilation))
    return conv2d(input_height=1, input_width=input_length, dtypes=dtypes, out=out, **others)


@golden("ttnn.conv_transpose2d")
def conv_transpose2d(
    input_tensor, weight_tensor, in_channels, out_channels, batch_size, input_height, input_width, kernel_size, stride,
    padding, output_padding, dilation, groups, bias_tensor, conv_config, compute_config, mirror_kernel, dtypes, out,
):  # fmt: skip
    """[1, 1, N * H * W, in] -> [1, 1, N * H' * W', out] of a weight [in, out / groups, kh, kw], or of a prepared one.

    A convolution of the image with zeros between its pixels. mirror_kernel=False: the weight is mirrored already.
    """
    how = in_channels, out_channels, kernel_size, groups, mirror_kernel
    weight = _weight(weight_tensor, dtypes, conv_config, *how)
    bias, _ = _tensor(bias_tensor, dtypes, "bias_tensor")
    x, _ = _tensor(input_tensor, {}, "input_tensor")
    x = x.float().reshape(batch_size, input_height, input_width, -1)
    height, width = ((n - 1) * s + 1 for n, s in zip((input_height, input_width), stride))
    apart = torch.zeros(batch_size, height, width, in_channels)
    apart[:, :: stride[0], :: stride[1]] = x[..., :in_channels]
    top, bottom, left, right = padding_of(padding)
    down, across = (d * (k - 1) for d, k in zip(dilation, kernel_size))
    edges = (across - left, across - right + output_padding[1])
    edges += (down - top, down - bottom + output_padding[0])
    kernel = Kernel.of(compute_config, "HiFi4", in_l1=False)
    y = _convolved(F.pad(apart, (0, 0, *edges)), weight, kernel_size, (1, 1), dilation, groups, kernel)
    return _results(y, weight, bias, kernel, conv_config, out)


# Prepared tensors have one order here, for every image.
UNPREPARED = (
    "input_memory_config input_layout in_channels batch_size input_height input_width kernel_size stride padding "
    "output_padding dilation has_bias groups conv_config"
)


@golden("ttnn.prepare_conv_weights", "ttnn.prepare_conv_transpose2d_weights", ignores=UNPREPARED)
def prepare_conv_weights(
    weight_tensor, weights_format, in_channels, out_channels, kernel_size, groups, conv_config, mirror_kernel, dtypes,
    out,
):  # fmt: skip
    """A weight [out, in / groups, kh, kw] -> [1, 1, >= kh * kw * in, >= out].

    mirror_kernel: of a transposed convolution, whose weight is [in, out / groups, kh, kw].
    """
    transposed = mirror_kernel is not None
    op, order = ("prepare_conv_transpose2d_weights", "IOHW") if transposed else ("prepare_conv_weights", "OIHW")
    if weights_format != order:
        raise GoldenError(f"ttnn.{op} of {weights_format!r}: only {order} has a golden")
    how = in_channels, out_channels, kernel_size, groups, mirror_kernel
    return _enlarged(_weight(weight_tensor, dtypes, conv_config, *how), out.shape)


@golden("ttnn.prepare_conv_bias", "ttnn.prepare_conv_transpose2d_bias", ignores=UNPREPARED)
def prepare_conv_bias(bias_tensor, out_channels, dtypes, out):
    """A bias of `out` values -> [1, 1, 1 or 32, >= out]."""
    bias, _ = _tensor(bias_tensor, dtypes, "bias_tensor")
    return _enlarged(bias.reshape(1, -1)[:, :out_channels], out.shape)


# ---- videos: products are summed in float32, and the result is rounded


@checks(None, "ttnn.experimental.prepare_conv3d_weights")
def _has_device(weight_tensor, device=None, **_) -> None:
    if not on_device(weight_tensor) and device is None:
        name = "ttnn.experimental.prepare_conv3d_weights"
        raise GoldenError(f"{name} of a weight on the host needs device: the library crashes without")


@checks(None, "ttnn.experimental.conv3d")
def _has_input(input_tensor, **_) -> None:
    if not on_device(input_tensor):  # only an unprepared weight may be on the host
        raise GoldenError("ttnn.experimental.conv3d runs on a device, and its input_tensor is a tensor on the host")


@golden("ttnn.experimental.prepare_conv3d_weights")
def prepare_conv3d_weights(weight_tensor, groups, C_in_block, alignment):
    """[out, C / groups, kd, kh, kw] -> [blocks of C * kd * kh * kw * C_in_block, out]; zeros align C."""
    weight = _tensor(weight_tensor, {}, "weight_tensor")[0].float()
    weight = dense(weight, groups).permute(2, 3, 4, 1, 0)
    weight = F.pad(weight, (0, 0, 0, -weight.shape[3] % alignment))
    blocks = weight.unflatten(3, (-1, C_in_block or weight.shape[3]))
    return blocks.permute(3, 0, 1, 2, 4, 5).flatten(0, 4)


@golden("ttnn.experimental.conv3d")
def conv3d(
    input_tensor, weight_tensor, bias_tensor, config, output_channels, kernel_size, stride, padding, dilation,
    padding_mode, groups, out,
):  # fmt: skip
    """[N, D, H, W, C] by a prepared weight, or by [out, C / groups, kd, kh, kw] -> [N, D', H', W', out]."""
    x = input_tensor.float().permute(0, 4, 1, 2, 3)
    weight = _tensor(weight_tensor, {}, "weight_tensor")[0].float()
    if weight.dim() != 5:
        rows = weight.reshape(-1, weight.shape[-1])
        inside = getattr(config, "C_in_block", 0) or rows.shape[0] // torch.Size(kernel_size).numel()
        blocks = rows.reshape(-1, *kernel_size, inside, rows.shape[1])
        weight = blocks.permute(5, 0, 4, 1, 2, 3).flatten(1, 2)[:output_channels, : x.shape[1]]
    else:
        weight = dense(weight, groups)
    edges = [edge for size in reversed(padding) for edge in (size, size)]
    x = F.pad(x, edges, mode="replicate" if padding_mode == "replicate" else "constant")
    bias = None if bias_tensor is None else bias_tensor.float().flatten()[:output_channels]
    y = F.conv3d(x, weight, bias, tuple(stride), 0, tuple(dilation))
    return y.permute(0, 2, 3, 4, 1).reshape(out.shape)

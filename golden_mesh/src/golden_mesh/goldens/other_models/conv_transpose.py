"""Transposed convolutions: convolutions of an image with zeros between its pixels, and their prepared weights."""

import torch
import torch.nn.functional as F

from golden_mesh.arithmetic.kernel import Kernel
from golden_mesh.errors import GoldenError
from golden_mesh.goldens.activations import activate
from golden_mesh.goldens.other_models.conv import (
    UNPREPARED,
    _by_group,
    _convolved,
    _enlarged,
    _host,
    _results,
    _tensor,
    _weight,
    _with_bias,
    padding_of,
)
from golden_mesh.registry import golden


@golden("ttnn.conv_transpose2d")
def conv_transpose2d(
    input_tensor, weight_tensor, in_channels, out_channels, batch_size, input_height, input_width, kernel_size, stride,
    padding, output_padding, dilation, groups, bias_tensor, conv_config, compute_config, mirror_kernel, dtypes, out,
):  # fmt: skip
    """[1, 1, N * H * W, in] -> [1, 1, N * H' * W', out] of a weight [in, out / groups, kh, kw], or of a prepared one.

    A convolution of the image with zeros between its pixels. mirror_kernel=False: the weight is mirrored already.
    """
    shape = (out_channels, in_channels // groups, *kernel_size)
    prepared = _turned(weight_tensor, dtypes, conv_config, shape, groups, mirror_kernel)
    bias, _ = _tensor(bias_tensor, dtypes, "bias_tensor")
    x = _host(input_tensor).float().reshape(batch_size, input_height, input_width, -1)
    height, width = ((n - 1) * s + 1 for n, s in zip((input_height, input_width), stride))
    apart = torch.zeros(batch_size, height, width, in_channels)
    apart[:, :: stride[0], :: stride[1]] = x[..., :in_channels]
    top, bottom, left, right = padding_of(padding)
    down, across = (d * (k - 1) for d, k in zip(dilation, kernel_size))
    edges = (across - left, across - right + output_padding[1])
    edges += (down - top, down - bottom + output_padding[0])
    kernel = Kernel.of(compute_config, "HiFi4", in_l1=False)
    parts = _by_group(prepared, kernel_size, in_channels, groups)
    y = _convolved(F.pad(apart, (0, 0, *edges)), parts, kernel_size, (1, 1), dilation, kernel)
    y = activate(_with_bias(y, bias, kernel).float(), getattr(conv_config, "activation", None))
    return _results(y, prepared, bias, out)


def _turned(value, dtypes, conv_config, shape, groups: int, mirror_kernel: bool) -> torch.Tensor:
    """[kh * kw * in, out] of a weight [in, out / groups, kh, kw], or of one that is prepared.

    shape: [out, in / groups, kh, kw].
    """
    value, dtype = _tensor(value, dtypes, "weight_tensor")
    if tuple(value.shape) == (shape[1] * groups, shape[0] // groups, *shape[2:]):
        value = value.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
        value = value.flip(2, 3) if mirror_kernel else value
    return _weight(value, {"weight_tensor": dtype}, conv_config, shape, groups)


@golden("ttnn.prepare_conv_transpose2d_weights", ignores=UNPREPARED)
def prepare_conv_transpose2d_weights(
    weight_tensor, weights_format, in_channels, out_channels, kernel_size, groups, conv_config, mirror_kernel, dtypes,
    out,
):  # fmt: skip
    """A weight [in, out / groups, kh, kw] -> [1, 1, >= kh * kw * in, >= out]."""
    if weights_format != "IOHW":
        raise GoldenError(f"ttnn.prepare_conv_transpose2d_weights of {weights_format!r}: only IOHW has a golden")
    shape = (out_channels, in_channels // groups, *kernel_size)
    weight = _turned(weight_tensor, dtypes, conv_config, shape, groups, mirror_kernel)
    return _enlarged(weight, out.shape)

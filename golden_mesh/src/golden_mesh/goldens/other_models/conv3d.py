"""Convolutions of videos: conv3d and its prepared weights. Products are summed in float32; the result is rounded."""

import torch
import torch.nn.functional as F

from golden_mesh.errors import GoldenError
from golden_mesh.goldens.other_models.conv import _tensor, dense
from golden_mesh.hazards.checks import checks
from golden_mesh.mesh.arguments import on_device
from golden_mesh.registry import golden


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
    if padding_mode not in ("zeros", "replicate"):
        raise GoldenError(f"ttnn.experimental.conv3d has no golden for padding_mode={padding_mode}")
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

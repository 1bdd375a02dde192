"""Shapes: reshaping, slicing, joining, padding, reordering."""

import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.arithmetic import special
from golden_mesh.arithmetic.packer import BLOCK_FLOATS, pack
from golden_mesh.errors import GoldenError
from golden_mesh.goldens.layout import through_dest
from golden_mesh.registry import golden, golden_table


def _as(x: torch.Tensor, shape) -> torch.Tensor:
    """View x in another shape. One with fewer rows reads the first rows of each matrix: the others are padding."""
    if x.dim() >= 2 and len(shape) >= 2 and x.shape[-1] == shape[-1] and x.shape[-2] > shape[-2]:
        if x.shape[:-2].numel() == torch.Size(shape[:-2]).numel():
            x = x[..., : shape[-2], :]
    if x.numel() != torch.Size(shape).numel():
        raise GoldenError(f"{list(x.shape)} cannot be read as {list(shape)}: the padding would become part of it")
    return x.reshape(shape)


_SHAPES = "shape logical_shape padded_shape pad_value N C H W X Y Z dim"
golden(
    "ttnn.reshape", "ttnn.view", "ttnn.experimental.view", "ttnn.reshape_on_device", "ttnn.unsqueeze", "ttnn.squeeze",
    view=True, ignores=_SHAPES,
)(lambda input_tensor, out: _as(input_tensor, out.shape))  # fmt: skip
golden("ttnn.unsqueeze_to_4D", view=True)(lambda tensor, out: _as(tensor, out.shape))


@golden("ttnn.slice", pads="pad_value", ignores="slice_dim num_devices")
def slice_(input_tensor, slice_start, slice_end, slice_step, starts, ends, steps, pad_value):
    """input_tensor[start:end:step, ...], copied: a view would keep the whole tensor's memory.

    If starts and ends are tensors, the library takes the result's shape from slice_dim and num_devices.
    """
    pairs = (slice_start, starts), (slice_end, ends), (slice_step, steps)
    start, end, step = (a if a is not None else b for a, b in pairs)
    step = [1] * len(start) if step is None or len(step) == 0 else step
    return input_tensor[tuple(slice(*map(int, extents)) for extents in zip(start, end, step))].clone()


@golden("ttnn.concat")
def concat(tensors, dim, groups, configs, out):
    """groups: each tensor is cut into so many parts. The first parts come first, then the second parts.

    A Blackhole's DRAM has pages of 64 bytes. Block floats of other widths are transposed, joined and transposed again,
    and packed each time.
    """
    dim %= tensors[0].dim()
    in_rows = groups == 1 and dim == tensors[0].dim() - 1
    if in_rows and out.dtype in BLOCK_FLOATS and special.on_blackhole():
        dram = [config.buffer_type == ttnn.BufferType.DRAM for config in configs["tensors"]]
        if any(x.shape[-1] % 64 and held for x, held in zip(tensors, dram)):
            return torch.cat([pack(x.mT.contiguous(), out.dtype) for x in tensors], -2).mT
    if groups == 1:
        return torch.cat(list(tensors), dim)
    return torch.cat([x.unflatten(dim, (groups, -1)) for x in tensors], dim + 1).flatten(dim, dim + 1)


@golden("ttnn.pad")
def pad(input_tensor, padding, output_padded_shape, input_tensor_start, value):
    """Two overloads: (tensor, [(before, after), ...], value) and (tensor, shape, start, value)."""
    if input_tensor.dtype == torch.bfloat16:  # -3.4e38 becomes -inf, as in the library
        value = torch.tensor(value, dtype=torch.float32).bfloat16().item()
    if padding is None:
        extents = zip(input_tensor_start, input_tensor.shape, output_padded_shape)
        padding = [(start, new - old - start) for start, old, new in extents]
    return F.pad(input_tensor, [extent for pair in reversed(list(padding)) for extent in pair], value=value)


@golden("ttnn.permute", ignores="pad_value")
def permute(input_tensor, dims):
    result = input_tensor.permute(tuple(dims)).contiguous()
    return result if dims[-1] in (-1, input_tensor.dim() - 1) else through_dest(result)


@golden("ttnn.transpose", ignores="pad_value")
def transpose(input_tensor, dim1, dim2):
    result = input_tensor.transpose(dim1, dim2).contiguous()
    last = {-1, input_tensor.dim() - 1}
    return result if last.isdisjoint((dim1, dim2)) else through_dest(result)


_ROWS = {
    "ttnn.chunk": lambda input_tensor, chunks, dim: tuple(x.clone() for x in input_tensor.chunk(chunks, dim)),
    "ttnn.expand": lambda input_tensor, output_shape: input_tensor.expand(tuple(output_shape)).contiguous(),
    "ttnn.experimental.broadcast_to": lambda input, output_shape: input.expand(tuple(output_shape)).contiguous(),
    # [1, 1, H * W, C] -> [1, 1, C, H * W]
    "ttnn.experimental.convert_to_chw ttnn.experimental.transpose_rm": lambda input: input.mT.contiguous(),
    # [1, B, C, H * W] -> [1, 1, B * H * W, C or more]: the alignment's channels are zeros here
    "ttnn.experimental.convert_to_hwc": lambda input, out: F.pad(
        input.mT.flatten(0, 2)[None, None], (0, out.shape[-1] - input.shape[-2])
    ),
    "ttnn.repeat": lambda input_tensor, repeat_dims: input_tensor.tile(tuple(repeat_dims)),
    # without a dim the tensor is one row
    "ttnn.roll": lambda input_tensor, shifts, dim: torch.roll(input_tensor, shifts, dim),
    "ttnn.split": lambda input_tensor, split_size, dim=0: tuple(x.clone() for x in input_tensor.split(split_size, dim)),
    "ttnn.stack": lambda input_tensors, dim: torch.stack(list(input_tensors), dim),
}
golden_table(_ROWS)


@golden("ttnn.repeat_interleave")
def repeat_interleave(input_tensor, repeats, dim, out):
    """The last dim of block floats is transposed to be repeated, and packed so."""
    in_rows = repeats > 1 and dim % input_tensor.dim() == input_tensor.dim() - 1
    if in_rows and out.dtype in BLOCK_FLOATS:
        return pack(input_tensor.mT.contiguous(), out.dtype).repeat_interleave(repeats, -2).mT
    return input_tensor.repeat_interleave(repeats, dim)


@golden("ttnn.experimental.slice_write", writes="output_tensor")
def slice_write(input_tensor, output_tensor, start, end, step, store):
    """output_tensor[start:end:step, ...] = input_tensor"""
    output_tensor[tuple(map(slice, start, end, step))] = store(input_tensor)

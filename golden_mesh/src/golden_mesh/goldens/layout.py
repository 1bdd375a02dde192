"""Ops that move a tensor and change none of its values: memory configs, layouts, dtypes, copies.

The goldens return the values unchanged. The packer rounds them to another dtype. Only ttnn.typecast packs
differently. Copies to another dtype have a bfloat16 dest, so they cut float32.
"""

import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.arithmetic import engine, packer, special
from golden_mesh.errors import GoldenError
from golden_mesh.hazards import meet
from golden_mesh.registry import golden, golden_table


def through_dest(input_tensor: torch.Tensor) -> torch.Tensor:
    """The values as unpacker and packer hand them on: of bfloat16 a NaN becomes infinity."""
    return special.without_nan(input_tensor) if input_tensor.dtype == torch.bfloat16 else input_tensor


def _copied(x: torch.Tensor, dtype) -> torch.Tensor:
    """The values as a copy to `dtype` packs them. A copy of the same dtype has no dest."""
    return engine.keep(x, engine.BFLOAT16) if x.dtype == torch.float32 and dtype != ttnn.float32 else x


golden("ttnn.to_memory_config", pads="tensor")(lambda tensor, out: _copied(tensor, out.dtype))
golden(
    "ttnn.interleaved_to_sharded", "ttnn.sharded_to_interleaved", pads="input_tensor",
    ignores="sharded_memory_config keep_l1_aligned preallocated_output",
)(lambda input_tensor, out: _copied(input_tensor, out.dtype))  # fmt: skip


def _slice(height: int, num_slices: int, index: int) -> slice:
    return slice(index * height // num_slices, (index + 1) * height // num_slices)


@golden("ttnn.interleaved_to_sharded_partial")
def interleaved_to_sharded_partial(input_tensor, num_slices, slice_index, out):
    """One of num_slices equal parts of all rows: [..., W] -> [1, 1, rows / num_slices, W]."""
    rows = input_tensor.flatten(0, -2)
    part = rows[_slice(len(rows), num_slices, slice_index)]
    if part.shape != tuple(out.shape[-2:]):
        shape = list(input_tensor.shape)
        raise GoldenError(f"interleaved_to_sharded_partial of {shape}, which has padding, has no golden")
    return part.reshape(out.shape).clone()


@golden("ttnn.sharded_to_interleaved_partial", writes="cache_tensor")
def sharded_to_interleaved_partial(input_tensor, cache_tensor, num_slices, slice_index, output_dtype, dtypes, store):
    """Writes one of num_slices equal parts of the cache's rows."""
    written = output_dtype or dtypes["input_tensor"]
    if written != dtypes["cache_tensor"]:
        raise GoldenError(
            f"sharded_to_interleaved_partial writes {written.name} into a cache of {dtypes['cache_tensor'].name}: "
            "a chip does not convert it"
        )
    rows = cache_tensor.view(-1, cache_tensor.shape[-1])
    rows[_slice(len(rows), num_slices, slice_index)] = store(input_tensor).view(-1, rows.shape[-1])


_ROWS = {
    "ttnn.move ttnn.reshard": lambda input_tensor: input_tensor,
    "ttnn.reallocate": lambda tensor: tensor,
    "ttnn.tilize ttnn.untilize": through_dest,
    # the padding of the tile layout is not part of the logical shape
    "ttnn.to_layout": lambda tensor: through_dest(tensor),
    # output_tensor_end: the last index that stays, in every dimension
    "ttnn.untilize_with_unpadding": lambda input_tensor, output_tensor_end: through_dest(
        input_tensor[tuple(slice(0, last + 1) for last in output_tensor_end)]
    ).clone(),
}
golden_table(_ROWS, ignores="pad_value")


@golden("ttnn.tilize_with_zero_padding", pads=0.0)
@golden("ttnn.tilize_with_val_padding", pads="pad_value", ignores="output_tensor_shape")
def tilize_with_val_padding(input_tensor, out, pad_value=0):
    extents = zip(reversed(input_tensor.shape), reversed(out.shape))
    missing = [extent for old, new in extents for extent in (0, new - old)]
    padded = F.pad(through_dest(input_tensor), missing, value=pad_value)
    return packer.pack_padded(padded, out.dtype, pad_value) if out.dtype in packer.BLOCK_FLOATS else padded


@golden("ttnn.typecast", "ttnn.experimental.typecast")
def typecast(input_tensor, out):
    """Integers are clamped to uint16. The packer rounds them to bfloat16, ties away from zero."""
    if input_tensor.is_floating_point() or out.dtype == ttnn.bfloat8_b:
        return packer.typecast(input_tensor, out.dtype)
    if out.dtype == ttnn.uint16:
        return input_tensor.long().clamp(0, 2**16 - 1)
    return input_tensor.float() if out.dtype == ttnn.bfloat16 else input_tensor


@golden("ttnn.assign", ignores="input_b")
def assign(input_tensor, input_a, out):
    """Copy to another dtype or place, or into the second tensor, which the op returns."""
    return _copied(input_a if input_tensor is None else input_tensor, out.dtype)


# padding is no part of a tensor's values
golden("ttnn.fill_implicit_tile_padding", pads="fill_value")(lambda input_tensor, fill_value: input_tensor)


@golden("ttnn.clone")
def clone(input, compute_kernel_config, out):
    if input.is_floating_point() == ("INT" in out.dtype.name):
        meet("integers in a kernel of floats", "ttnn.clone", f"{input.dtype} to {out.dtype.name}")
    wide = compute_kernel_config is not None and compute_kernel_config.fp32_dest_acc_en
    return input if wide else _copied(input, out.dtype)


golden("ttnn.copy", writes="input_b", unread=True)(lambda input_a, input_b, dtypes: _copied(input_a, dtypes["input_b"]))

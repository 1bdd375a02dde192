"""Softmax: plain, in place, and with attention's scale and mask.

With a scale and a mask the kernels take three steps: x * scale, packed; + mask, packed; softmax. The scale is
cut to bfloat16. A mask is [B, 1, 1, W]: the first row of a tile is for all rows of a user. A causal mask is
[B, 1, W, W], for all heads.
"""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
import ttnn

from golden_mesh.arithmetic import engine, flash, special
from golden_mesh.arithmetic.kernel import Kernel, finest
from golden_mesh.arithmetic.parts import in_parts
from golden_mesh.arithmetic.product import TILE, multiply, sums_of_columns, sums_of_rows
from golden_mesh.errors import GoldenError
from golden_mesh.registry import golden

CORES = 56  # of the smallest grid, 8x7
_LARGEST = 88.7228  # logarithm of the largest float32


class _Between(NamedTuple):
    """What lies between the steps, if dest holds float32."""

    bits: int  # of the maximum
    packs: bool  # whether the packer makes bfloat16 of the other results


def _settings(config, x: torch.Tensor) -> tuple[Kernel, _Between]:
    """The default kernel has the approximate exp, except for a float32 tensor."""
    narrow = x.dtype == torch.bfloat16
    between = _Between(engine.BFLOAT16 if narrow else engine.FLOAT32, narrow and config is None)
    return Kernel.of(config, finest(), wide=True, approximate=narrow), between


def _normalized(x: torch.Tensor, dim: int, kernel: Kernel, stable: bool, between: _Between) -> torch.Tensor:
    """exp(x) / sum(exp(x)) of float x. If it is not stable, the maximum is not subtracted, and exp can overflow.

    Also a float32 tensor is unpacked to eleven bits: a value of 30 has an error of 1/64, its exp of 1.6 %.
    """
    weights = partial(_weights, dim=dim, kernel=kernel, stable=stable, between=between)
    return in_parts(weights, x, rows=True) if dim in (-1, x.dim() - 1) else weights(x)


def _weights(x: torch.Tensor, dim: int, kernel: Kernel, stable: bool, between: _Between) -> torch.Tensor:
    scores = engine.keep(x.float(), engine.SRC_B)
    largest = scores.new_zeros(())
    if stable:
        largest = engine.keep(special.without_nan(special.largest(scores, dim)), between.bits)
    weights = flash.weights(scores, largest, 1.0, kernel, kernel.approximate)
    if not stable:
        weights = weights.masked_fill(~(scores <= _LARGEST), torch.inf)
    if between.packs or not kernel.wide:
        weights = engine.to_bfloat16_(weights)
    total = _sum(weights, dim % x.dim() - x.dim(), kernel)
    if kernel.wide:
        bits = engine.BFLOAT16 if between.packs else engine.FLOAT32
        return multiply(weights, engine.source_b(1 / total, kernel), kernel, bits)
    return multiply(weights, (1 / total).bfloat16(), kernel)


def _sum(weights: torch.Tensor, dim: int, kernel: Kernel) -> torch.Tensor:
    if dim == -2:
        return sums_of_columns(weights, kernel, 1.0)
    if dim < -2 and kernel.wide:  # tile by tile
        return weights.sum(dim, keepdim=True)
    return sums_of_rows(weights.transpose(dim, -1), kernel).transpose(dim, -1)


@golden("ttnn.softmax")
def softmax(input_tensor, dim=-1, numeric_stable=True, compute_kernel_config=None):
    """Over the last of up to four dims. The kernel of others has an exact exp and always subtracts the maximum."""
    kernel, between = _settings(compute_kernel_config, input_tensor)
    if dim not in (-1, input_tensor.dim() - 1) or input_tensor.dim() > 4:
        kernel, numeric_stable = replace(kernel, approximate=False), True
        between = between._replace(packs=False)
    return _normalized(input_tensor, dim, kernel, numeric_stable, between)


@golden("ttnn.softmax_in_place", writes="input_tensor")
def softmax_in_place(input_tensor, dim, numeric_stable, compute_kernel_config):
    kernel, between = _settings(compute_kernel_config, input_tensor)
    return _normalized(input_tensor, dim, kernel, numeric_stable, between)


def _masked(x: torch.Tensor, scale: float | None, mask: torch.Tensor | None, kernel: Kernel) -> torch.Tensor:
    """x * scale + mask, packed after either step."""
    if mask is None:
        return x
    factor = engine.keep(torch.tensor(1.0 if scale is None else float(scale)), engine.BFLOAT16)
    scaled = multiply(x, factor, kernel)
    total = engine.add_in_dest(scaled if kernel.wide else scaled.bfloat16(), mask, kernel)
    return total.reshape(x.shape)  # a mask has four dimensions, x may have fewer


def _mask(x: torch.Tensor, mask: torch.Tensor | None, causal: bool, program_config=None) -> torch.Tensor | None:
    """The mask as it meets x [B, heads, S, W]: [B, 1, 1, W] or, causal, [B, 1, S, W].

    GoldenError: the kernels read the mask in another order than its shape says. A core with several rows of
    tiles reads a causal mask as square.
    """
    if mask is None:
        return None
    rows, columns = x.shape[-2:]
    if causal:
        heads = x.shape[1] if x.dim() == 4 else 1
        sharded = isinstance(program_config, ttnn.SoftmaxShardedMultiCoreProgramConfig)
        one_a_core = not sharded and x.shape[:-2].numel() * -(-rows // TILE) <= CORES
        square = rows == columns or (rows < columns and heads == 1)
        if mask.shape[-2] != rows or not (one_a_core or square):
            raise GoldenError(
                f"causal mask {list(mask.shape)} for scores {list(x.shape)}: "
                f"the kernel reads it as [{columns}, {columns}]"
            )
        return mask
    if mask.shape[-1] == TILE != columns:  # row-major: a row is cut into pieces of 32
        mask = mask.flatten(-2).unsqueeze(-2)[..., :columns]
    if mask.shape[-2] > TILE or not torch.equal(mask, mask[..., :1, :].expand_as(mask)):
        raise GoldenError(
            f"mask {list(mask.shape)} has rows that differ, and only the first of each tile is read: "
            "say is_causal_mask=True, or give one row"
        )
    return mask[..., :1, :]


def _attention(x, scale, mask, stable: bool, config) -> torch.Tensor:
    kernel, between = _settings(config, x)
    scores = _masked(x, scale, mask, kernel)
    if between.packs and stable and mask is not None:
        scores = engine.to_bfloat16(scores)
    return _normalized(scores, -1, kernel, stable, between)


@golden("ttnn.scale_mask_softmax")
@golden("ttnn.scale_mask_softmax_in_place", writes="input_tensor")
def scale_mask_softmax(
    input_tensor, scale, mask, program_config, is_causal_mask, numeric_stable, compute_kernel_config=None
):
    """softmax(x * scale + mask) over the last dimension of x [B, heads, S, W]."""
    mask = _mask(input_tensor, mask, is_causal_mask, program_config)
    return _attention(input_tensor, scale, mask, numeric_stable, compute_kernel_config)


@golden("ttnn.scale_causal_mask_hw_dims_softmax_in_place", writes="input_tensor")
def scale_causal_mask_hw_dims_softmax_in_place(input_tensor, scale, mask, numeric_stable, compute_kernel_config):
    """One mask [1, 1, S, W] serves all users and heads of x [B, heads, S, W]."""
    return _attention(input_tensor, scale, mask, numeric_stable, compute_kernel_config)


def _scale(head_size: int | None) -> float:
    return 1.0 if head_size is None else head_size**-0.5


@golden("ttnn.transformer.attention_softmax")
def attention_softmax(tensor, head_size, attention_mask, causal_mask):
    """softmax(x / sqrt(head_size) + mask). Without a mask the scale is a separate op."""
    if attention_mask is not None:
        return scale_mask_softmax(tensor, _scale(head_size), attention_mask, None, causal_mask, True)
    scaled = tensor.float() * torch.tensor(_scale(head_size)).to(tensor.dtype).float()
    return softmax(scaled.to(tensor.dtype))


@golden("ttnn.transformer.attention_softmax_", writes="tensor")
def attention_softmax_(tensor, head_size, attention_mask, causal_mask, program_config):
    return scale_mask_softmax(tensor, _scale(head_size), attention_mask, program_config, causal_mask, True)

"""Elements selected by place or index: triangles, fills, scatters, sorting, embedding."""

from typing import Callable

import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.arithmetic import packer
from golden_mesh.goldens.activations import wide
from golden_mesh.goldens.eltwise_binary import compute
from golden_mesh.hazards import meet
from golden_mesh.registry import golden, golden_table


def _triangle(function: Callable) -> Callable:
    """The library multiplies: float32's NaN and infinities stay NaN where the mask is 0."""

    def op(input_tensor, diagonal, out):
        mask = function(torch.ones_like(input_tensor), diagonal)
        return compute(torch.mul, input_tensor, mask, out.dtype, {"x": out.dtype, "mask": out.dtype})

    return op


_ROWS = {
    # a uint32 with all bits set says yes
    "ttnn.experimental.isin": lambda elements, test_elements, invert: (
        torch.isin(elements, test_elements, invert=invert).long() * 0xFFFFFFFF
    ),
    # input's elements at `index` along dim
    "ttnn.gather": lambda input, dim, index: input.gather(dim, index.long()),
    # `value` at the places along dim that index [n] names
    "ttnn.index_fill ttnn.index_fill_new": lambda input, dim, index, value: input.index_fill(dim, index.long(), value),
    "ttnn.scatter": lambda input, dim, index, src: input.scatter(dim, index.long(), src),
    "ttnn.scatter_add": lambda input, dim, index, src: wide(input).scatter_add(dim, index.long(), wide(src)),
    # sorted values and their places. Equal values keep their order, which a chip does only if `stable`
    "ttnn.sort": lambda input_tensor, dim, descending: input_tensor.sort(stable=True, dim=dim, descending=descending),
    # input [N, K, C] at index [N, W] -> [N, W, C]
    "ttnn.tosa_gather": lambda input, index: input.gather(1, _channels(index, input)),
    "ttnn.tril": _triangle(torch.tril),
    "ttnn.triu": _triangle(torch.triu),
}
golden_table(_ROWS, ignores="assume_unique sparse_grad stable")


@golden("ttnn.indexed_fill")
def indexed_fill(batch_id, input_tensor_a, input_tensor_b, dim):
    """a with b's parts at the places along dim that batch_id names. The last of equal places counts."""
    result = input_tensor_a.clone()
    for part, place in enumerate(batch_id.flatten().tolist()):
        result.select(dim, place).copy_(input_tensor_b.select(dim, part))
    return result


@golden("ttnn.tosa_scatter")
def tosa_scatter(input, index, src):
    """input [N, K, C] with src [N, W, C] at index [N, W]"""
    if (largest := int(index.max())) >= 1 << 16:
        meet("tosa_scatter beyond 65535", "ttnn.tosa_scatter", f"index {largest}")
    return input.scatter(1, _channels(index, input), src)


def _channels(index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return index.long().unsqueeze(-1).expand(-1, -1, x.shape[-1])


@golden("ttnn.fill_rm", ignores="any")
def fill_rm(N, C, H, W, hOnes, wOnes, val_hi, val_lo):
    """[N, C, H, W] of val_lo, with val_hi in the first hOnes rows of the first wOnes columns."""
    result = torch.full((N, C, H, W), float(val_lo))
    result[..., :hOnes, :wOnes] = val_hi
    return result


golden("ttnn.fill_ones_rm", ignores="any")(lambda N, C, H, W, hOnes, wOnes: fill_rm(N, C, H, W, hOnes, wOnes, 1, 0))


@golden("ttnn.nonzero")
def nonzero(input_tensor, out):
    """How many elements are not zero, [1, 1, 1, 8], and where: [1, 1, 1, 4 * elements], four indices each.

    The rest of both tensors is undefined on a chip. Here it is the largest uint32.
    """
    found = input_tensor.nonzero()
    indices = F.pad(found, (4 - input_tensor.dim(), 0)).flatten()
    parts = zip((torch.tensor([len(found)]), indices), out)
    return tuple(F.pad(part, (0, slot.shape[-1] - len(part)), value=2**32 - 1).view(slot.shape) for part, slot in parts)


@golden("ttnn.embedding", ignores="padding_idx")
def embedding(input_tensor, weight, embeddings_type, out):
    """The row of weight [..., V, H] for each of the ids, in the op's result shape.

    The type BINARY has two rows: every id other than 0 means the second row. The other types change no value.
    """
    ids = input_tensor.reshape(-1).long()
    if embeddings_type == ttnn.EmbeddingsType.BINARY:
        ids = (ids != 0).long()
    rows = weight.reshape(weight.shape[-2:])[ids].reshape(out.shape)
    return packer.typecast(rows, out.dtype) if out.dtype == ttnn.bfloat8_b else rows

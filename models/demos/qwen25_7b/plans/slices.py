"""A chip's slices, as values: ranges of a checkpoint's tensors, side by side.

A slice describes a chip's bytes without reading them, so it can be printed, compared and hashed. Reading a slice makes
one chip's tensor and nothing else. The memory of a load therefore does not grow with the model.
"""

from dataclasses import dataclass
from math import prod
from typing import Callable, Literal, Optional

import torch

from ..config.rope import Rope
from .grids import TILE, TILE_BYTES, ceil_div
from .rotary_pairs import centered_pairs, key_divisors, norm_divisors, scale, to_interleaved

# Part of the name of every folder of packed weights. Raise it when `read` gives other values for the same slice
# (tests/unit/test_slices.py notices), or when the fields of a slice change.
VERSION = 6

ReadTensor = Callable[[str], torch.Tensor]  # a tensor by its Hugging Face name


@dataclass(frozen=True)
class KeyScaling:
    """How a head's rows are scaled by the norm of K's bias, and which part of that bias is read (rotary_pairs.py)."""

    tensor: str  # K's bias
    first: int  # the key head's first element there
    queries: bool = False  # whether the rows are those of a query head
    rope: Optional[Rope] = None  # the rotation, where the layer's keys may be centered
    # Which part of K's bias: "centered" has the centered pairs, "plain" the others, each with zeros elsewhere.
    part: Optional[Literal["plain", "centered"]] = None

    def apply(self, values: torch.Tensor, k_bias: torch.Tensor) -> torch.Tensor:
        """values [head_dim, ...] of the head, k_bias [head_dim] of its key head."""
        if self.part is not None:
            unread = centered_pairs(k_bias, self.rope) ^ (self.part == "centered")
            values = values.masked_fill(unread.view(-1, *[1] * (values.dim() - 1)), 0)
        return scale(values, key_divisors(k_bias, self.rope), queries=self.queries)


@dataclass(frozen=True)
class TensorRange:
    """`count` rows or columns of a tensor, from number `first`."""

    tensor: str  # its Hugging Face name
    first: int
    count: int
    pairs: bool = False  # whether the range is one head, to be reordered to rotary pairs
    scaling: Optional[KeyScaling] = None


@dataclass(frozen=True)
class Constant:
    """`count` rows or columns of padding, which no tensor has."""

    count: int
    value: float = 0.0


@dataclass(frozen=True)
class Projection:
    """One chip's slice of a linear layer, [in, out] as in ttnn.linear. Hugging Face has [out, in].

    A bias is split along its only dim and held as [1, out].
    """

    split_dim: int  # the split dim of Hugging Face's tensors; 0: outputs (a chip's columns), 1: inputs (its rows)
    blocks: tuple[TensorRange | Constant, ...]  # along split_dim
    other: int  # extent of the dim that is not split; 1 for a bias

    @property
    def shape(self) -> tuple[int, int]:
        extent = sum(block.count for block in self.blocks)
        return (self.other, extent) if self.split_dim == 0 else (extent, self.other)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors that reading needs."""
        ranges = [block for block in self.blocks if isinstance(block, TensorRange)]
        scaling = [block.scaling.tensor for block in ranges if block.scaling]
        return tuple(dict.fromkeys([*(block.tensor for block in ranges), *scaling]))

    @property
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the checkpoint's tensors, as far as this slice reaches."""
        extents: dict[str, int] = {}
        for block in self.blocks:
            if isinstance(block, TensorRange):
                extents[block.tensor] = max(extents.get(block.tensor, 0), block.first + block.count)
        if self.other == 1:
            return {name: (extent,) for name, extent in extents.items()}
        return {name: (n, self.other) if self.split_dim == 0 else (self.other, n) for name, n in extents.items()}

    def read(self, tensor: ReadTensor) -> torch.Tensor:
        """Return [in, out] in the dtype of the first tensor. Makes one copy, and another of each range of inputs: torch
        takes three times as long to transpose what does not lie together.
        """
        sources = {name: tensor(name) for name in self.tensors}
        dtype = sources[self.tensors[0]].dtype if sources else torch.bfloat16
        result = torch.empty(self.shape, dtype=dtype)
        at = 0
        for block in self.blocks:
            place = result.narrow(1 - self.split_dim, at, block.count)
            at += block.count
            if isinstance(block, Constant):
                place.fill_(block.value)
            else:
                place.copy_(self._read_range(block, sources).contiguous().t())
        return result

    def _read_range(self, block: TensorRange, sources: dict[str, torch.Tensor]) -> torch.Tensor:
        source = sources[block.tensor]
        matrix = source if source.dim() == 2 else source.unsqueeze(1)
        values = matrix.narrow(self.split_dim, block.first, block.count)
        if block.scaling:
            bias = sources[block.scaling.tensor].narrow(0, block.scaling.first, block.count)
            values = block.scaling.apply(values, bias)
        return to_interleaved(values, self.split_dim) if block.pairs else values


@dataclass(frozen=True)
class WholeTensor:
    """A whole tensor, in rows of `width` elements."""

    tensor: str
    tensor_shape: tuple[int, ...]
    width: int

    shape = property(lambda self: (prod(self.tensor_shape) // self.width, self.width))
    tensors = property(lambda self: (self.tensor,))
    tensor_shapes = property(lambda self: {self.tensor: self.tensor_shape})

    def read(self, tensor: ReadTensor) -> torch.Tensor:
        return tensor(self.tensor).reshape(self.shape)


@dataclass(frozen=True)
class HeadNorm(WholeTensor):
    """The norm weight of a head of q or k, in rotary pairs.

    K's pairs are equalized by powers of two, and Q's by their inverses (rotary_pairs.py).
    """

    k_norm: str

    @property
    def tensors(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.tensor, self.k_norm)))

    def read(self, tensor: ReadTensor) -> torch.Tensor:
        divisors = norm_divisors(tensor(self.k_norm))
        scaled = scale(tensor(self.tensor), divisors, queries=self.tensor != self.k_norm)
        return to_interleaved(scaled).reshape(self.shape)


WeightSlice = Projection | WholeTensor


@dataclass(frozen=True)
class WeightShard:
    """A slice in the format and layout of a chip's DRAM. The cache keeps one file a shard."""

    slice: WeightSlice
    format: str  # a recipe's name for a number format: bfloat16, bfloat8_b, bfloat4_b
    tiled: bool  # tile layout; else row-major

    @property
    def bytes(self) -> int:
        """In a chip's DRAM, without the padding of its banks."""
        rows, columns = self.slice.shape
        if not self.tiled:
            return rows * columns * 2  # bfloat16, since block floats are tiled
        return ceil_div(rows, TILE) * ceil_div(columns, TILE) * TILE_BYTES[self.format]

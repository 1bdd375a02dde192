"""What a chip holds, as values: ranges of a checkpoint's tensors, side by side.

A part says which bytes a chip gets without having them: it is printed, compared and hashed before anything is read. Reading
one makes one chip's tensor and nothing else, so that a load never holds more than the parts it is working on.
"""

from dataclasses import dataclass, replace
from typing import Callable, Iterator, Optional

import torch

from .equalise import key_divisors, matching_query, quiet_key
from .rotary_pairs import to_interleaved

# Part of the name of everything that the tile cache holds. Raise it when `read` gives other values for the same part
# (tests/unit/test_parts.py notices).
VERSION = 1

ReadTensor = Callable[[str], torch.Tensor]  # a tensor by its Hugging Face name


@dataclass(frozen=True)
class Equalised:
    """That a head's rows are scaled by how loud K's bias is (equalise.py): those of its key, or of a query that attends to it."""

    tensor: str  # K's bias
    first: int  # of the key head's elements there
    queries: bool = False


@dataclass(frozen=True)
class Taken:
    """`count` rows or columns of a tensor, from number `first`. pairs: they are one head, to be put in rotary pairs."""

    tensor: str  # its Hugging Face name
    first: int
    count: int
    pairs: bool = False
    equalised: Optional[Equalised] = None


@dataclass(frozen=True)
class Constant:
    """`count` rows or columns that no tensor has."""

    count: int
    value: float = 0.0


@dataclass(frozen=True)
class Projection:
    """One chip's block of a linear layer, [in, out] as ttnn.linear wants it; Hugging Face keeps [out, in].

    cut: the dim of Hugging Face's tensors that `blocks` are ranges of. 0: outputs, the columns of what a chip holds;
    1: inputs, its rows. A bias is cut along its only dim and held as [1, out].
    """

    cut: int
    blocks: tuple[Taken | Constant, ...]
    other: int  # extent of the dim that is not cut; 1 for a bias

    @property
    def extent(self) -> int:
        """Rows or columns of all blocks."""
        return sum(block.count for block in self.blocks)

    @property
    def shape(self) -> tuple[int, int]:
        return (self.other, self.extent) if self.cut == 0 else (self.extent, self.other)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors that it is made of."""
        taken = [block for block in self.blocks if isinstance(block, Taken)]
        scaling = [block.equalised.tensor for block in taken if block.equalised]
        return tuple(dict.fromkeys([*(block.tensor for block in taken), *scaling]))

    def narrow(self, first: int, count: int) -> "Projection":
        """`count` of the rows or columns, from number `first`."""
        return replace(self, blocks=tuple(_within(self.blocks, first, first + count)))

    def filled(self, extent: int) -> "Projection":
        """With zeros after the last row or column, up to `extent`."""
        missing = extent - self.extent
        return replace(self, blocks=(*self.blocks, Constant(missing))) if missing else self

    def beside(self, other: "Projection") -> "Projection":
        """The rows or columns of both, `other`'s last."""
        assert (self.cut, self.other) == (other.cut, other.other), "the two do not fit together"
        return replace(self, blocks=self.blocks + other.blocks)

    def read(self, tensor: ReadTensor) -> torch.Tensor:
        """[in, out], in the tensors' dtype (the widest, where they differ). The result is the only copy that is made."""
        sources = {name: tensor(name) for name in self.tensors}
        taken_from = [sources[block.tensor].dtype for block in self.blocks if isinstance(block, Taken)]
        dtype = _common(taken_from) if taken_from else torch.bfloat16
        result = torch.empty(self.shape, dtype=dtype)
        at = 0
        for block in self.blocks:
            place = result.narrow(1 - self.cut, at, block.count)
            at += block.count
            if isinstance(block, Constant):
                place.fill_(block.value)
                continue
            source = sources[block.tensor]
            whole = source if source.dim() == 2 else source.unsqueeze(1)
            taken = whole.narrow(self.cut, block.first, block.count)
            if block.equalised:
                divisors = key_divisors(sources[block.equalised.tensor].narrow(0, block.equalised.first, block.count))
                taken = (matching_query if block.equalised.queries else quiet_key)(taken, divisors)
            place.copy_((to_interleaved(taken, self.cut) if block.pairs else taken).t())
        return result


@dataclass(frozen=True)
class Table:
    """A tensor as it is, in another shape: the embedding, a norm's weight."""

    tensor: str
    shape: tuple[int, int]

    @property
    def tensors(self) -> tuple[str, ...]:
        return (self.tensor,)

    def read(self, tensor: ReadTensor) -> torch.Tensor:
        return tensor(self.tensor).reshape(self.shape)


Part = Projection | Table


@dataclass(frozen=True)
class Piece:
    """A part as a chip's DRAM holds it, which is what the tile cache keeps a file of."""

    part: Part
    format: str  # a recipe's name for a number format: bfloat16, bfloat8_b, bfloat4_b
    tiled: bool  # in tiles; else row after row


def _within(blocks: tuple[Taken | Constant, ...], first: int, last: int) -> Iterator[Taken | Constant]:
    """What of the blocks lies in [first, last) of all their rows or columns."""
    at = 0
    for block in blocks:
        begin, end = max(first, at), min(last, at + block.count)
        if begin < end:
            count, skipped = end - begin, begin - at
            if isinstance(block, Constant):
                yield replace(block, count=count)
            else:
                assert count == block.count or not block.pairs, "a head in rotary pairs cannot be cut"
                yield replace(block, first=block.first + skipped, count=count)
        at += block.count


def _common(dtypes: list[torch.dtype]) -> torch.dtype:
    """The narrowest dtype that holds all of them."""
    widest = dtypes[0]
    for dtype in dtypes[1:]:
        widest = torch.promote_types(widest, dtype)
    return widest

"""A weight of the model on a row of chips, and who makes the tensors of it."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Callable, Protocol

import torch

from .parts import Part, Piece, Projection

if TYPE_CHECKING:
    import ttnn


class TensorSource(Protocol):
    """Whatever finds a tensor by its Hugging Face name, such as a Checkpoint."""

    def tensor(self, name: str) -> torch.Tensor: ...


class PieceSource(Protocol):
    """Whoever has a piece as a tensor of ttnn's on the host, ready to be sent: made of a checkpoint, or kept in a file."""

    def host(self, piece: Piece) -> "ttnn.Tensor": ...


@dataclass(frozen=True)
class Packing:
    """A PieceSource that makes every piece when it is asked for, in the caller's thread, and keeps none."""

    source: TensorSource

    def host(self, piece: Piece) -> "ttnn.Tensor":
        return packed(piece, self.source.tensor)


def packed(piece: Piece, tensor: Callable[[str], torch.Tensor]) -> "ttnn.Tensor":
    """[1, 1, rows, columns] on the host, tiled and packed by ttnn's own code."""
    import ttnn  # here, since checkpoints are opened before it is chosen what is below ttnn

    layout = ttnn.TILE_LAYOUT if piece.tiled else ttnn.ROW_MAJOR_LAYOUT
    return ttnn.from_torch(piece.part.read(tensor)[None, None], dtype=getattr(ttnn, piece.format), layout=layout)


@dataclass(frozen=True)
class Weight:
    """parts[c] is what chip c of a row holds, all of one shape; a single part is what every chip holds."""

    pieces: PieceSource
    parts: tuple[Part, ...]

    def __post_init__(self):
        assert len({part.shape for part in self.parts}) == 1, "chips run one program: their parts have one shape"

    @property
    def shape(self) -> tuple[int, int]:
        """Of one chip's part."""
        return self.parts[0].shape

    def host(self, format: str, *, tiled: bool) -> "list[ttnn.Tensor]":
        """One host tensor a part, the same one where parts are the same."""
        pieces = self.pieces_as(format, tiled=tiled)
        made = {piece: self.pieces.host(piece) for piece in dict.fromkeys(pieces)}
        return [made[piece] for piece in pieces]

    def pieces_as(self, format: str, *, tiled: bool) -> list[Piece]:
        return [Piece(part, format, tiled) for part in self.parts]

    def narrow(self, first: int, count: int) -> "Weight":
        """Each chip's columns (or rows, where those are cut) from number `first`."""
        return self._each(lambda part: part.narrow(first, count))

    def filled(self, extent: int) -> "Weight":
        """Each chip's part filled up with zeros to `extent` columns (or rows)."""
        return self._each(lambda part: part.filled(extent))

    def beside(self, other: "Weight") -> "Weight":
        """Each chip's columns of this weight, then those of the other."""
        return replace(self, parts=tuple(a.beside(b) for a, b in zip(self.parts, other.parts, strict=True)))

    def _each(self, change: Callable[[Projection], Projection]) -> "Weight":
        return replace(self, parts=tuple(map(change, self.parts)))

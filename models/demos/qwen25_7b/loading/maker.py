"""Making pieces: from the cache where it has them, else from the checkpoint, and then into the cache."""

from threading import Lock
from typing import TYPE_CHECKING, Callable, Optional

from models.demos.qwen25_7b.loading.tensors import Tensors
from models.demos.qwen25_7b.loading.tiles import Damaged, TileFile, TileFiles
from models.demos.qwen25_7b.weights import Piece, packed

if TYPE_CHECKING:
    import ttnn


class Packer:
    """Makes pieces without a cache. Several threads may call it at once."""

    def __init__(self, tensors: Tensors):
        self.tensors = tensors

    def make(self, piece: Piece) -> "ttnn.Tensor":
        """[1, 1, rows, columns] on the host."""
        try:
            return packed(piece, self.tensors.get)
        finally:
            self.tensors.release(piece)


class Maker:
    """Makes pieces through a cache. Several threads may call it at once.

    key: of a piece in it. unchanged: CheckpointError if the checkpoint's files are others than
    when it was opened. say: is told if a file was damaged, or if new ones cannot be kept.
    """

    def __init__(
        self,
        tensors: Tensors,
        tiles: TileFiles,
        key: Callable[[Piece], str],
        *,
        unchanged: Callable[[], None],
        say: Callable[[str], None],
    ):
        self.tensors, self.tiles, self.key = tensors, tiles, key
        self.unchanged, self.say = unchanged, say
        self.keeps = False  # whether new pieces go into the cache
        self.files: dict[str, TileFile] = {}  # of the pieces made so far that are in the cache, by their keys
        self.written: list[TileFile] = []  # those of them that are new
        self._lock = Lock()

    def make(self, piece: Piece) -> "ttnn.Tensor":
        """[1, 1, rows, columns] on the host; from the cache it is mapped."""
        try:
            if not piece.part.tensors:  # padding alone is not worth a file
                return packed(piece, self.tensors.get)
            key = self.key(piece)
            kept = self._kept(key)
            return self._made(key, piece) if kept is None else kept
        finally:
            self.tensors.release(piece)

    def _kept(self, key: str) -> "Optional[ttnn.Tensor]":
        file = self.tiles.find(key)
        if file is None:
            return None
        try:
            tensor = self.tiles.load(file)
        except Damaged as damage:
            self.say(f"cache: {damage}; it is made again")
            self.tiles.discard(file)
            return None
        self.files[key] = file
        return tensor

    def _made(self, key: str, piece: Piece) -> "ttnn.Tensor":
        tensor = packed(piece, self.tensors.get)
        if not self.keeps:
            return tensor
        self.unchanged()
        try:
            file = self.tiles.store(key, tensor)
        except OSError as error:
            self._give_up(error)
            return tensor
        kept = self.tiles.load(file)
        with self._lock:
            self.written.append(file)
            if not self.keeps:
                self._remove_written()
        self.files[key] = file
        return kept

    def _give_up(self, error: OSError) -> None:
        """Half a cache on a full disk helps nobody."""
        with self._lock:
            if self.keeps:
                self.keeps = False
                self.say(f"cache: {self.tiles.root} cannot be written ({error}); the model is loaded without it")
            self._remove_written()

    def _remove_written(self) -> None:
        for file in self.written:
            self.tiles.discard(file)
        self.written.clear()

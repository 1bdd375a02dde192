"""Builders of weight shards for a load: from the tile cache where it has them, else from the checkpoint.

Several threads may call a builder at once. Each tensor of the checkpoint is mapped, checked and hashed once, and
released after its last shard.
"""

from collections import Counter
from threading import Lock
from typing import TYPE_CHECKING, Callable, Iterable, Mapping, Optional

import torch

from models.demos.qwen25_7b.loading.tiles import Damaged, TileFile, TileFiles, digest_of
from models.demos.qwen25_7b.weights import TensorSource, WeightShard, build_shard

if TYPE_CHECKING:
    import ttnn


class _SharedTensor:
    """A tensor that several threads may read at once."""

    def __init__(self):
        self.lock = Lock()
        self.tensor = None


class Tensors:
    """A checkpoint's tensors during a load.

    known: digests by tensor names, from an earlier load. shards: all shards of the load, each once.
    """

    def __init__(
        self, source: TensorSource, known: Mapping[str, str], shards: Iterable[WeightShard]
    ):
        self._source = source
        self.digests = dict(known)
        self._uses = Counter(name for shard in shards for name in shard.slice.tensors)
        self._entries: dict[str, _SharedTensor] = {}
        self._lock = Lock()

    def get(self, name: str) -> torch.Tensor:
        entry = self._entry(name)
        with entry.lock:
            if entry.tensor is None:
                entry.tensor = self._source.tensor(name)
            return entry.tensor

    def digest(self, name: str) -> str:
        """Return the digest of the tensor's content."""
        if name not in self.digests:
            tensor, entry = self.get(name), self._entry(name)
            with entry.lock:
                if name not in self.digests:
                    self.digests[name] = digest_of(tensor)
        return self.digests[name]

    def are_unchanged(self) -> bool:
        """Read every tensor with a digest again, and compare."""
        return all(
            digest_of(self._source.tensor(name)) == digest
            for name, digest in list(self.digests.items())
        )

    def release(self, shard: WeightShard) -> None:
        """Count a shard as built."""
        with self._lock:
            for name in shard.slice.tensors:
                self._uses[name] -= 1
                if self._uses[name] <= 0:
                    self._entries.pop(name, None)

    def _entry(self, name: str) -> _SharedTensor:
        with self._lock:
            return self._entries.setdefault(name, _SharedTensor())


class Builder:
    """A ShardBuilder without a cache."""

    def __init__(self, tensors: Tensors):
        self.tensors = tensors

    def build(self, shard: WeightShard) -> "ttnn.Tensor":
        """Return [1, 1, rows, columns] on the host."""
        try:
            return build_shard(shard, self.tensors.get)
        finally:
            self.tensors.release(shard)


class CachedBuilder:
    """A ShardBuilder through the tile cache.

    key: returns a shard's key. check_unchanged: CheckpointError if the checkpoint's weights have changed since they were
    opened. say: takes a line for a damaged file, or for a new file that cannot be kept.
    """

    def __init__(
        self,
        tensors: Tensors,
        tiles: TileFiles,
        key: Callable[[WeightShard], str],
        *,
        check_unchanged: Callable[[], None],
        say: Callable[[str], None],
    ):
        self.tensors = tensors
        self.tiles = tiles
        self.key = key
        self.check_unchanged = check_unchanged
        self.say = say
        self.keeps = False  # whether new shards go into the cache
        self.files: dict[str, TileFile] = {}  # of this load's shards that are in the cache, by key
        self.written: list[TileFile] = []  # those of them that are new
        self._lock = Lock()

    def build(self, shard: WeightShard) -> "ttnn.Tensor":
        """Return [1, 1, rows, columns] on the host, mapped if it is in the cache."""
        try:
            if not shard.slice.tensors:  # padding alone is not worth a file
                return build_shard(shard, self.tensors.get)
            key = self.key(shard)
            cached = self._load(key)
            return self._build(key, shard) if cached is None else cached
        finally:
            self.tensors.release(shard)

    def _load(self, key: str) -> "Optional[ttnn.Tensor]":
        file = self.tiles.find(key)
        if file is None:
            return None
        try:
            tensor = self.tiles.load(file)
        except Damaged as damage:
            self.say(f"cache: {damage}; it is made again")
            self._discard(file)
            return None
        self.files[key] = file
        return tensor

    def _build(self, key: str, shard: WeightShard) -> "ttnn.Tensor":
        tensor = build_shard(shard, self.tensors.get)
        if not self.keeps:
            return tensor
        self.check_unchanged()
        try:
            file = self.tiles.store(key, tensor)
        except OSError as error:
            self._stop_keeping(error)
            return tensor
        cached = self.tiles.load(file)
        with self._lock:
            self.written.append(file)
            if not self.keeps:
                self._remove_written()
        self.files[key] = file
        return cached

    def _stop_keeping(self, error: OSError) -> None:
        """Remove this load's new files: half a cache on a full disk is of no use."""
        with self._lock:
            if self.keeps:
                self.keeps = False
                self.say(
                    f"cache: {self.tiles.root} cannot be written ({error}); the model is loaded without it"
                )
            self._remove_written()

    def _remove_written(self) -> None:
        for file in self.written:
            self._discard(file)
        self.written.clear()

    def _discard(self, file: TileFile) -> None:
        failure = self.tiles.discard(file)
        if failure:
            self.say(f"cache: cannot be removed: {failure}")

"""A checkpoint that is open for loading: known by its files, or by what the cache remembers of them."""

import os
from pathlib import Path
from threading import Lock
from typing import Callable, Mapping, Optional

import torch

from models.common import terminal
from models.demos.qwen25_7b.config import QwenConfig
from models.demos.qwen25_7b.loading.place import default_root, prepared
from models.demos.qwen25_7b.loading.record import Record, files_of, folder_of, read_record, small_files, stats_of
from models.demos.qwen25_7b.loading.tiles import TileFiles
from models.demos.qwen25_7b.weights import Checkpoint, CheckpointError
from models.demos.qwen25_7b.weights.checkpoint import SMALL_FILES, local_directory

Say = Callable[[str], None]


def open_checkpoint(
    model: str | Path, *, cache: Optional[Path] = None, use_cache: bool = True, say: Say = terminal.complain
) -> "OpenedCheckpoint":
    """Open a checkpoint by its directory or hub id. Nothing of its weights is read, and ttnn is not needed yet.

    cache: where tile files are kept; default: the user's cache directory. say: is told in a line what became of it;
    default: stderr.
    UserError: there is no such model, its files are damaged, or others may write to the cache.
    """
    if not use_cache:
        return OpenedCheckpoint(model, None, False, say)
    root = Path(os.path.abspath(cache or default_root()))
    problem = prepared(root)
    if problem:
        say(f"cache: {root} cannot be written ({problem}); what it has is used")
    return OpenedCheckpoint(model, TileFiles(root), problem is None, say)


class OpenedCheckpoint:
    """A TensorSource that opens the checkpoint when its first tensor is needed: with a complete cache never.

    config: the model's. directory: where config and tokenizer can be read; in the cache, if it remembers the checkpoint.
    home: the checkpoint's own directory, whose weights may have been deleted. known: digests of its tensors, if the cache
    remembers them. tiles: None without a cache.
    """

    def __init__(self, model: str | Path, tiles: Optional[TileFiles], writable: bool, say: Say):
        self.tiles, self.writable, self._say = tiles, writable, say
        self._said: set[str] = set()
        self._model = model
        self._checkpoint: Optional[Checkpoint] = None
        self._opening = Lock()
        record = None
        if tiles:
            self.home = _home(model, tiles.root)
            self.folder = folder_of(tiles.root, self.home)
            record = read_record(self.folder)
        if record and record.agrees(self.home):
            self._stats, self._small = record.weights, record.small
            self.directory = files_of(self.folder)
            self.config = QwenConfig.from_json(self.directory / "config.json")
        else:
            checkpoint = self._opened()
            self.home = Path(os.path.abspath(checkpoint.directory))
            self._stats = stats_of(self.home, checkpoint.files)
            self._small = small_files(self.home) if tiles else {}
            self.directory, self.config = self.home, checkpoint.config
        self.known: Mapping[str, str] = record.tensors if record and record.weights == self._stats else {}

    def say(self, line: str) -> None:
        """Once: replicas of a model would repeat each other."""
        if line not in self._said:
            self._said.add(line)
            self._say(line)

    def tensor(self, name: str) -> torch.Tensor:
        return self._opened().tensor(name)

    @property
    def weights_there(self) -> bool:
        return bool(stats_of(self.home, self._stats))

    @property
    def element_bytes(self) -> int:
        """Of the checkpoint's widest tensor; 2 while it need not be opened."""
        return self._checkpoint.element_bytes if self._checkpoint else 2

    def check_unchanged(self) -> None:
        """CheckpointError if the files of weights are not those that were opened."""
        if stats_of(self.home, self._stats) != self._stats:
            raise CheckpointError(f"{self.home}: its weights were changed while they were read; start again")

    def record(self, digests: Mapping[str, str]) -> Record:
        """What the cache shall remember of it."""
        return Record(str(self.home), self._stats, self._small, digests)

    def _opened(self) -> Checkpoint:
        with self._opening:
            if self._checkpoint is None:
                self._checkpoint = Checkpoint.open(self._model)
            return self._checkpoint


def _home(model: str | Path, root: Path) -> Path:
    """The checkpoint's directory, also where it was deleted and the cache remembers it; of a hub id its small files are
    fetched, whose directory has the commit for its name."""
    directory = Path(os.path.abspath(model))
    if str(model) and (os.path.isdir(directory) or read_record(folder_of(root, directory))):
        return directory
    return Path(os.path.abspath(local_directory(model, SMALL_FILES)))

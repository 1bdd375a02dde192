"""A checkpoint that is open for loading, by its files or by the cache's record of its files."""

import os
from pathlib import Path
from threading import Lock
from typing import Callable, Mapping, Optional

import torch

from models.common import terminal
from models.common.options import path
from models.common.user_file import FileError
from models.demos.qwen25_7b.config import QwenConfig
from models.demos.qwen25_7b.loading import default_root
from models.demos.qwen25_7b.loading.record import (
    Folder,
    Record,
    read_record,
    small_files,
    stats_of,
)
from models.demos.qwen25_7b.loading.tiles import KIND, TileFiles
from models.demos.qwen25_7b.weights import Checkpoint, CheckpointError
from models.demos.qwen25_7b.weights.checkpoint import (
    SMALL_FILES,
    check_name,
    local_directory,
    snapshot_commit,
)

Say = Callable[[str], None]


def open_checkpoint(
    model: str | Path,
    *,
    cache: Optional[str | Path] = None,
    use_cache: bool = True,
    revision: Optional[str] = None,
    say: Say = terminal.complain,
) -> "OpenedCheckpoint":
    """Open a checkpoint by its directory or hub id. Reads no weights and does not need ttnn.

    cache: the directory of tile files; default: the user's cache directory.
    revision: a commit, branch or tag of a hub id; default: its main branch.
    say: takes a line about the cache; default: stderr.
    UserError: there is no such model, its files are damaged, or the cache cannot be trusted.
    """
    check_name(model)
    if not use_cache:
        return OpenedCheckpoint(model, None, False, say, revision)
    root = Path(os.path.abspath(default_root() if cache is None else path("--cache")(str(cache))))
    problem = KIND.prepare(root)
    if problem:
        say(f"cache: {root} cannot be written ({problem}); what it has is used")
    return OpenedCheckpoint(model, TileFiles(root), problem is None, say, revision)


class OpenedCheckpoint:
    """A TensorSource that opens the checkpoint when its first tensor is read.

    A load with a complete cache reads no tensor, so it never opens the checkpoint.

    - config: the model's.
    - directory: has config and tokenizer; in the cache, if the cache has a record of the checkpoint.
    - home: the checkpoint's own directory; its weights may have been deleted.
    - known: digests of the checkpoint's tensors, if the cache has them.
    - tiles: None without a cache.
    """

    def __init__(
        self,
        model: str | Path,
        tiles: Optional[TileFiles],
        writable: bool,
        say: Say,
        revision: Optional[str] = None,
    ):
        self.tiles = tiles
        self.writable = writable
        self._say = say
        self._said: set[str] = set()
        self._model = model
        self._revision = revision
        self._checkpoint: Optional[Checkpoint] = None
        self._opening = Lock()
        self._comparing = Lock()
        record = None
        if tiles:
            self.home = _home(model, tiles.root, revision)
            # The weights are of this commit, even if the branch moves before they are fetched.
            self._revision = snapshot_commit(self.home) or revision
            self.folder = Folder.of(tiles.root, self.home)
            record = read_record(self.folder)
        if record and self._agrees(record):
            self._stats = record.weights
            self._small = record.small
            self.directory = self.folder.files
            self.config = QwenConfig.from_json(self.directory / "config.json")
        else:
            checkpoint = self._opened()
            self.home = Path(os.path.abspath(checkpoint.directory))
            self._stats = stats_of(self.home, checkpoint.files)
            self._small = _small_files(self.home) if tiles else {}
            self.directory = self.home
            self.config = checkpoint.config
        self.known: Mapping[str, str] = (
            record.tensors if record and record.weights == self._stats else {}
        )

    def say(self, line: str) -> None:
        """Tell a line once. Replicas of a model would repeat it."""
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

    def check_unchanged(self, tensors_are_unchanged: Callable[[], bool]) -> None:
        """CheckpointError if the weights have changed since they were opened.

        A hard link, a rename and a chmod change the time of an inode and nothing else. `tensors_are_unchanged` then
        compares the content.
        """
        with self._comparing:
            found = stats_of(self.home, self._stats)
            if found == self._stats:
                return
            same_but_for_inode_time = found.keys() == self._stats.keys() and all(
                found[name][:3] == self._stats[name][:3] for name in found
            )
            if not (same_but_for_inode_time and tensors_are_unchanged()):
                raise CheckpointError(
                    f"{self.home}: its weights were changed while they were read; start again"
                )
            self._stats = found

    def record(self, digests: Mapping[str, str]) -> Record:
        """Return the cache's record of the checkpoint."""
        return Record(str(self.home), self._stats, self._small, digests)

    def _agrees(self, record: Record) -> bool:
        try:
            return record.agrees(self.home)
        except FileError as error:
            raise CheckpointError(f"{error}; check its permissions") from error

    def _opened(self) -> Checkpoint:
        with self._opening:
            if self._checkpoint is None:
                self._checkpoint = Checkpoint.open(self._model, self._revision)
            return self._checkpoint


def _small_files(directory: Path) -> dict[str, str]:
    try:
        return small_files(directory)
    except FileError as error:
        raise CheckpointError(f"{error}; check its permissions") from error


def _home(model: str | Path, root: Path, revision: Optional[str]) -> Path:
    """Return the checkpoint's directory, also if it was deleted and the cache has a record of the checkpoint.

    Of a hub id the small files are fetched. Their directory is named by the commit.
    """
    directory = Path(os.path.abspath(model))
    if revision is None and (os.path.isdir(directory) or read_record(Folder.of(root, directory))):
        return directory
    return Path(os.path.abspath(local_directory(model, SMALL_FILES, revision)))

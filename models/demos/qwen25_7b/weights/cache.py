"""A cache of packed weights: a folder for each state of a checkpoint, a file for each weight shard, mapped by ttnn.

    qwen25-7b-ttnn/Qwen2.5-7B-Instruct-0123456789ab/
        model.norm.weight.0123456789abcdef.tensorbin    a shard
        89abcdef0123/                                   for each path, or hub id and revision, that it was opened by:
            config.json, tokenizer.json, ...            copies of the small files
            checkpoint.json                             the name

A folder is of one content of the weight files, one version of ttnn and one of this code. It has the shards of all
splits and recipes that were loaded, so a start does not need the checkpoint. It may be deleted at any time.
"""

import ctypes
import hashlib
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Condition
from typing import TYPE_CHECKING, Iterator, Mapping, Optional, Sequence

import torch
from loguru import logger
from tqdm import tqdm

from ..config import DecoderConfig
from ..errors import UserError, warn_once
from ..plans.model_table import ModelTable
from ..plans.slices import WeightShard
from .cache_folder import Copies, folder_of, has_weights
from .checkpoint import READ_FILES, Checkpoint, CheckpointError, local_directory
from .model_weights import BuildShard, TensorSource, build_shard, builder

if TYPE_CHECKING:
    import ttnn

CACHE_NAME = "qwen25-7b-ttnn"
SUFFIX = ".tensorbin"  # ttnn loads and dumps no other
TAG = "Signature: 8a477f597d28d172789f06886806bc55\n"  # a CACHEDIR.TAG's: backup programs skip the folder
TEMPORARY = "tmp-"  # begins the name of a folder of unfinished files
MEND = "make room, choose another place with --cache DIR, or use --no-cache"
NOT_KEPT = "weights are packed anew at each start; name another place with XDG_CACHE_HOME"
LEFTOVER_SECONDS = 3600  # after which a killed process's temporary folder is removed
# Host memory of the shards that are packed at one time. The 7B's embedding alone takes 1.09 GB.
PACKING_BYTES = 1_150_000_000


class CacheError(UserError):
    """A cache that cannot be written."""


def cache_root(directory: Optional[str | Path] = None, name: str = CACHE_NAME) -> Path:
    """Return directory/name. Default: $XDG_CACHE_HOME/name if that variable is absolute, else ~/.cache/name.

    CacheError: there is no home, or no such path can be.
    """
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "")
    place = directory or (caches if caches.is_absolute() else "~/.cache")
    try:
        return Path(place).expanduser().absolute() / name
    except RuntimeError as error:  # no such user, or no HOME and no entry in passwd
        raise CacheError(f"cache {place}: no home directory is known ({error})") from error


def open_checkpoint(
    model: str | Path, *, cache: Optional[str | Path] = None, use_cache: bool = True, revision: Optional[str] = None
) -> "CachedCheckpoint | Checkpoint":
    """Open a checkpoint by its directory or hub id. Reads no weights and does not need ttnn.

    cache: a directory that gets a folder for packed weights; default: the user's cache directory, where it can be
    written.
    revision: a commit, branch or tag of a hub id; default: its main branch.
    CheckpointError: there is no such model, or its files are damaged.
    """
    if not use_cache:
        return Checkpoint.open(model, revision)
    if cache is not None:
        return CachedCheckpoint(model, cache_root(cache), revision)
    try:
        return CachedCheckpoint(model, cache_root(), revision, optional=True)
    except CacheError as error:
        logger.warning(f"{error}: {NOT_KEPT}")
        return Checkpoint.open(model, revision)


def packed_weights(source: TensorSource | Mapping[str, torch.Tensor], table: ModelTable) -> BuildShard:
    """What builds a model's shards. A CachedCheckpoint packs them into its folder first, and maps them from there."""
    if not isinstance(source, CachedCheckpoint):
        return builder(source)
    source.pack(table.shards)
    return source.build


class CachedCheckpoint:
    """A TensorSource that also builds shards. It opens the checkpoint's weights when the folder lacks a shard.

    - config: the model's.
    - directory: has config and tokenizer.
    - folder: of the packed weights.
    """

    def __init__(self, model: str | Path, root: Path, revision: Optional[str], *, optional: bool = False):
        """optional: where nothing can be written, the weights are used without the cache."""
        self._model = model
        self._revision = revision
        self._root = root
        self._optional = optional
        self._is_written = True
        is_path = os.path.isdir(model)
        self._names = [f"{model}@{revision or 'main'}", os.path.abspath(model)][is_path:]
        copies = None
        try:
            self.directory = local_directory(model, READ_FILES, revision)
        except CheckpointError:  # it was deleted, or the hub cannot be reached
            copies = Copies.find(root, self._names)
            if copies is None:
                raise
            self.directory = copies.directory
        else:
            if not is_path:
                # The weights are of this commit, even if the branch moves before they are fetched.
                self._revision = self.directory.name
                self._names = [f"{model}@{self._revision}", f"{model}@{revision or 'main'}"]
            is_present = has_weights(self.directory, whole=not is_path)
            if not is_present:
                copies = Copies.find(root, self._names[:1])
        if copies is None:
            self.folder = folder_of(root, model, self.directory if is_present else self._checkpoint.directory)
            copies = Copies.of(self.folder, self._names[0])
        else:
            logger.warning(f"{model}: its weights are not there; using those of {copies}")
            self.folder = copies.directory.parent
            if not (self.directory / "config.json").exists():
                self.directory = copies.directory
        record = copies.record()
        if record:  # whether the head is tied is known once the weights were opened
            config = DecoderConfig.from_json(self.directory / "config.json")
            self.config = replace(config, tie_word_embeddings=record["tie_word_embeddings"])
            self._notes = record["notes"]
            for note in self._notes:
                warn_once(note)
        else:
            self.config = self._checkpoint.config
            self._notes = self._checkpoint.notes

    def tensor(self, name: str) -> torch.Tensor:
        return self._checkpoint.tensor(name)

    def build(self, shard: WeightShard) -> "ttnn.Tensor":
        """Return [1, 1, rows, columns] on the host, mapped from the folder."""
        import ttnn  # here, since a checkpoint is opened before the backend of ttnn is chosen

        # Padding alone has no file.
        if not shard.slice.tensors or not (self._is_written or self._file(shard).exists()):
            return build_shard(shard, self.tensor)
        try:
            return ttnn.load_tensor(self._file(shard))
        except RuntimeError as error:
            logger.warning(f"cache: {self._file(shard)}: damaged ({_reason(error)}); it is packed again")
            self._file(shard).unlink(missing_ok=True)
            self.pack([shard])
            return self.build(shard)

    def pack(self, shards: Sequence[WeightShard]) -> None:
        """Pack the shards that the folder lacks. CacheError: they cannot be written; nothing unfinished stays."""
        missing = [shard for shard in shards if not self._file(shard).exists()]
        try:
            if missing:
                # Opened before a folder is made for a checkpoint that cannot be read.
                if folder_of(self._root, self._model, self._checkpoint.directory) != self.folder:
                    raise CheckpointError(f"{self._model}: its weights have changed: start again")
                with self._temporary_folder() as temporary:
                    self._pack(missing, temporary)
                logger.info(f"cache: {_amount(sum(shard.bytes for shard in missing))} written to {self._root}")
        except CacheError as error:
            if not self._optional:
                raise CacheError(f"{error}; {MEND}") from error
            logger.warning(f"{error}: {NOT_KEPT}")
            self._is_written = False
        if self.directory.parent != self.folder:
            # A cache that can only be read is enough. So are links to elsewhere, which are not copied.
            with suppress(OSError, CheckpointError):
                for name in self._names:
                    Copies.of(self.folder, name).write(self.directory, self.config.tie_word_embeddings, self._notes)

    def _pack(self, missing: Sequence[WeightShard], temporary: Path) -> None:
        import ttnn

        memory = _Memory(PACKING_BYTES)

        def pack(shard: WeightShard) -> int:
            file = self._file(shard)
            with memory.taken(shard.working_bytes):
                tensor = build_shard(shard, self.tensor)
                with self._writing():
                    ttnn.dump_tensor(temporary / file.name, tensor)
                    with (temporary / file.name).open("rb") as written:
                        os.fsync(written.fileno())  # a loss of power leaves no file of zeros
                    os.replace(temporary / file.name, file)
            return shard.bytes

        total = sum(shard.bytes for shard in missing)
        free = shutil.disk_usage(self.folder).free
        if total > free:
            raise CacheError(f"{self._root}: {_amount(total)} are to be written, {_amount(free)} are free")
        threads = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
        try:
            with tqdm(total=total, desc="weights", unit="B", unit_scale=True, leave=False, disable=None) as packed:
                for size in threads.map(pack, missing):
                    packed.update(size)
        finally:
            threads.shutdown(cancel_futures=True)
            ctypes.CDLL(None).malloc_trim(0)  # what was freed returns to the system

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        return Checkpoint.open(self._model, self._revision)

    def _file(self, shard: WeightShard) -> Path:
        digest = hashlib.sha256(repr(shard).encode()).hexdigest()[:16]
        return self.folder / f"{shard.slice.tensors[0]}.{digest}{SUFFIX}"

    # ---- writing

    @contextmanager
    def _temporary_folder(self) -> Iterator[Path]:
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            if not (self._root / "CACHEDIR.TAG").exists():  # another user's cannot be written again
                (self._root / "CACHEDIR.TAG").write_text(TAG)
            for leftover in self.folder.glob(f"{TEMPORARY}*"):
                if time.time() - leftover.stat().st_mtime > LEFTOVER_SECONDS:
                    shutil.rmtree(leftover, ignore_errors=True)
            temporary = TemporaryDirectory(prefix=TEMPORARY, dir=self.folder)
        with temporary as path:
            yield Path(path)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError) as error:  # RuntimeError: ttnn's, for every failed write
            raise CacheError(f"{self._root}: cannot be written ({_reason(error)})") from error


class _Memory:
    """Host memory that threads share."""

    def __init__(self, limit: int):
        self._limit = limit
        self._free = limit
        self._changed = Condition()

    @contextmanager
    def taken(self, amount: int) -> Iterator[None]:
        """Wait until `amount` bytes, or all, are free, and take them in the block."""
        amount = min(amount, self._limit)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= amount)
            self._free -= amount
        try:
            yield
        finally:
            with self._changed:
                self._free += amount
                self._changed.notify_all()


def _amount(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def _reason(error: Exception) -> str:
    """Return the system's message, or the line of ttnn's that follows "info:"."""
    lines = (getattr(error, "strerror", None) or f"{error}").splitlines()
    return lines[lines.index("info:") + 1] if "info:" in lines[:-1] else lines[0]

"""A cache of packed weights: a folder for each checkpoint, a file for each weight shard, mapped by ttnn.

    qwen25-7b-ttnn/Qwen2.5-7B-Instruct-0123456789ab/
        model.norm.weight.0123456789abcdef.tensorbin    a shard
        config.json, tokenizer.json, ...                copies of the checkpoint's small files
        checkpoint.json                                 the name and the place of the checkpoint

A folder is of one state of the checkpoint's files, one version of ttnn and one of this code. It has the shards of all
splits and recipes that were loaded, so a start does not need the checkpoint. It may be deleted at any time.
"""

import ctypes
import hashlib
import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Condition, Lock
from typing import TYPE_CHECKING, Callable, Iterator, Mapping, Optional, Sequence

import torch
from tqdm import tqdm

from ..cli import terminal
from ..config import QwenConfig, Recipe
from ..errors import UserError
from ..plans.parallel_plan import ParallelPlan
from .checkpoint import SMALL_FILES, Checkpoint, CheckpointError, local_directory, snapshot_commit
from .model_weights import ModelWeights, TensorSource, build_shard
from .slices import VERSION, WeightShard

if TYPE_CHECKING:
    import ttnn

CACHE_NAME = "qwen25-7b-ttnn"
RECORD = "checkpoint.json"
SUFFIX = ".tensorbin"  # ttnn loads and dumps no other
TAG = "Signature: 8a477f597d28d172789f06886806bc55\n"  # of a CACHEDIR.TAG: backup programs skip it
TEMPORARY = "tmp-"  # begins the name of a folder of unfinished files
LEFTOVER_SECONDS = 3600  # after which a killed process's temporary folder is removed
# Host memory of the shards that are packed at one time. The 7B's embedding alone takes 1.09 GB.
PACKING_BYTES = 1_150_000_000


class CacheError(UserError):
    """A cache that cannot be written."""


def cache_root(name: str = CACHE_NAME) -> Path:
    """Return $XDG_CACHE_HOME/name if that variable is absolute, else ~/.cache/name."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "")
    return (caches if caches.is_absolute() else Path("~/.cache").expanduser()) / name


def open_checkpoint(
    model: str | Path,
    *,
    cache: Optional[str | Path] = None,
    use_cache: bool = True,
    revision: Optional[str] = None,
    say: Callable[[str], None] = terminal.complain,
) -> "CachedCheckpoint | Checkpoint":
    """Open a checkpoint by its directory or hub id. Reads no weights and does not need ttnn.

    cache: a directory that gets a folder for packed weights; default: the user's cache directory.
    revision: a commit, branch or tag of a hub id; default: its main branch.
    say: takes a line about the cache; default: stderr.
    CheckpointError: there is no such model, or its files are damaged.
    """
    if not use_cache:
        return Checkpoint.open(model, revision)
    root = cache_root() if cache is None else Path(cache).expanduser().absolute() / CACHE_NAME
    return CachedCheckpoint(model, root, revision, say)


def packed_weights(
    source: TensorSource | Mapping[str, torch.Tensor],
    config: QwenConfig,
    parallel: ParallelPlan,
    recipe: Recipe,
) -> ModelWeights:
    """Return the weights for a split. Those of a CachedCheckpoint are packed into its folder first, and mapped from there."""
    from .inventory import inventory  # imports ttnn

    shards = inventory(config, parallel, recipe)
    if not isinstance(source, CachedCheckpoint):
        return ModelWeights(source, config, parallel)
    source.pack(shards)
    return ModelWeights(source, config, parallel, build=source.build)


class CachedCheckpoint:
    """A TensorSource that also builds shards. It opens the checkpoint's weights when the folder lacks a shard.

    - config: the model's.
    - directory: has config and tokenizer.
    - folder: of the packed weights.
    """

    def __init__(
        self, model: str | Path, root: Path, revision: Optional[str], say: Callable[[str], None]
    ):
        self._model = model
        self._requested = self._revision = revision
        self._root = root
        self._say = say
        self._checkpoint: Optional[Checkpoint] = None
        self._opening = Lock()
        self.directory, folder = self._find()
        # The weights are of this commit, even if the branch moves before they are fetched.
        self._revision = snapshot_commit(self.directory) or revision
        if folder is None or not (folder / RECORD).exists():
            self.config = self._opened().config
            folder = folder or _folder_of(root, self._opened().directory)
        else:
            self.config = QwenConfig.from_json(self.directory / "config.json")
        self.folder = folder

    def tensor(self, name: str) -> torch.Tensor:
        return self._opened().tensor(name)

    def build(self, shard: WeightShard) -> "ttnn.Tensor":
        """Return [1, 1, rows, columns] on the host, mapped from the folder."""
        import ttnn  # here, since a checkpoint is opened before the backend of ttnn is chosen

        if not shard.slice.tensors:  # padding alone has no file
            return build_shard(shard, self.tensor)
        try:
            return ttnn.load_tensor(self._file(shard))
        except RuntimeError as error:
            self._say(f"cache: {self._file(shard)}: damaged ({_reason(error)}); it is packed again")
            self._file(shard).unlink(missing_ok=True)
            self.pack([shard])
            return ttnn.load_tensor(self._file(shard))

    def pack(self, shards: Sequence[WeightShard]) -> None:
        """Pack the shards that the folder lacks. CacheError: they cannot be written; nothing unfinished stays."""
        from .inventory import shard_bytes

        missing = [shard for shard in shards if not self._file(shard).exists()]
        if not missing:
            return
        self._opened()  # before a folder is made for a checkpoint that cannot be read
        with self._temporary_folder() as temporary:
            self._pack(missing, temporary)
            with self._writing():
                self._write_record(temporary)
        self._say(f"cache: {_amount(sum(map(shard_bytes, missing)))} written to {self._root}")

    def _pack(self, missing: Sequence[WeightShard], temporary: Path) -> None:
        import ttnn

        from .inventory import shard_bytes, working_bytes

        memory = _Memory(PACKING_BYTES)

        def pack(shard: WeightShard) -> int:
            file = self._file(shard)
            with memory.taken(working_bytes(shard)):
                tensor = build_shard(shard, self.tensor)
                with self._writing():
                    ttnn.dump_tensor(temporary / file.name, tensor)
                    os.replace(temporary / file.name, file)
            return shard_bytes(shard)

        total = sum(map(shard_bytes, missing))
        free = shutil.disk_usage(self.folder).free
        if total > free:
            raise CacheError(
                f"{self._root}: {_amount(total)} are to be written, {_amount(free)} are free; make room, choose another "
                "place with --cache DIR, or use --no-cache"
            )
        threads = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
        bar = dict(unit="B", unit_scale=True, leave=False, disable=None)
        try:
            with tqdm(total=total, desc="weights", **bar) as packed:
                for size in threads.map(pack, missing):
                    packed.update(size)
        finally:
            threads.shutdown(cancel_futures=True)
            ctypes.CDLL(None).malloc_trim(0)  # what was freed returns to the system

    def _opened(self) -> Checkpoint:
        with self._opening:
            if self._checkpoint is None:
                self._checkpoint = Checkpoint.open(self._model, self._revision)
            return self._checkpoint

    def _file(self, shard: WeightShard) -> Path:
        digest = hashlib.sha256(repr(shard).encode()).hexdigest()[:16]
        return self.folder / f"{shard.slice.tensors[0]}.{digest}{SUFFIX}"

    # ---- the folder

    def _find(self) -> tuple[Path, Optional[Path]]:
        """Return the directory with config and tokenizer, and the folder; None if the weights are to be opened first."""
        try:
            directory = local_directory(self._model, SMALL_FILES, self._revision)
        except CheckpointError:  # it was deleted, or the hub cannot be reached
            folder = self._find_by_name()
            if folder is None:
                raise
            return folder, folder
        folder = _folder_of(self._root, directory) or self._find_by_name()
        if folder is not None and not (directory / "config.json").exists():
            directory = folder
        return directory, folder

    def _find_by_name(self) -> Optional[Path]:
        """Return the newest folder of a checkpoint of this name, for one whose weights were deleted."""
        names = {f"{self._model}", os.path.abspath(self._model)}
        records = sorted(self._root.glob(f"*/{RECORD}"), key=os.path.getmtime, reverse=True)
        for file in records:
            try:
                record = json.loads(file.read_text())
                found = names & {record["model"], record["directory"]}
                fits = self._revision in (None, record["revision"], record["requested"])
            except (OSError, ValueError, LookupError, TypeError):
                continue
            if found and fits and record.get("packing") == _packing():
                return file.parent
        return None

    def _record(self) -> str:
        model = self._model
        record = {
            "model": os.path.abspath(model) if os.path.isdir(model) else f"{model}",
            "directory": os.path.abspath(self.directory),
            "requested": self._requested,
            "revision": self._revision,
            "packing": _packing(),
        }
        return json.dumps(record, indent=1)

    def _write_record(self, temporary: Path) -> None:
        if self.directory == self.folder:
            return
        for file in _small_files(self.directory):
            shutil.copy2(file, temporary / file.name)
            os.replace(temporary / file.name, self.folder / file.name)
        (temporary / RECORD).write_text(self._record())
        os.replace(temporary / RECORD, self.folder / RECORD)

    @contextmanager
    def _temporary_folder(self) -> Iterator[Path]:
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
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
            raise CacheError(
                f"{self._root}: cannot be written ({_reason(error)}); make room, choose another place with --cache DIR, "
                "or use --no-cache"
            ) from error


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


def _folder_of(root: Path, directory: Path) -> Optional[Path]:
    """Return the folder for a checkpoint's files; None if it has no weights."""
    commit = snapshot_commit(directory)
    stats = [(f.name, f.stat()) for f in sorted(directory.glob("*.safetensors")) if f.exists()]
    if not commit and not stats:
        return None
    state = commit or [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    digest = hashlib.sha256(json.dumps([state, _packing()]).encode()).hexdigest()[:12]
    name = directory.parent.parent.name.rpartition("--")[2] if commit else directory.absolute().name
    return root / f"{name}-{digest}"


def _packing() -> str:
    """The versions that determine a shard's bytes."""
    try:
        ttnn_version = version("ttnn")
    except PackageNotFoundError:  # a build that is not installed
        ttnn_version = "unknown"
    return f"ttnn {ttnn_version}, slices {VERSION}"


def _amount(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def _small_files(directory: Path) -> list[Path]:
    return [file for pattern in SMALL_FILES for file in directory.glob(pattern) if file.is_file()]


def _reason(error: Exception) -> str:
    """Return the system's message, or the line of ttnn's that follows "info:"."""
    lines = (getattr(error, "strerror", None) or f"{error}").splitlines()
    return lines[lines.index("info:") + 1] if "info:" in lines[:-1] else lines[0]

"""A cache of packed weights: a folder for each content of a checkpoint, a file for each weight shard, mapped by ttnn.

    qwen25-7b-ttnn/Qwen2.5-7B-Instruct-0123456789ab/
        model.norm.weight.0123456789abcdef.tensorbin    a shard
        config.json, tokenizer.json, ...                copies of the small files
        checkpoint.json                                 the paths, or hub ids and revisions, that it was opened by

A folder is of one content of the weight files, one version of ttnn and one of this code. It has the shards of all
splits and recipes that were loaded, so a start does not need the checkpoint. It may be deleted at any time.
"""

import ctypes
import filecmp
import hashlib
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Iterator, Mapping, Optional, Sequence

import torch
from loguru import logger
from tqdm import tqdm

from ..config import DecoderConfig
from ..errors import UserError, shown
from ..files import FileError, read_json, write_json, write_whole
from ..plans.machines import ttnn_version
from ..plans.model_table import ModelTable
from ..plans.slices import VERSION, WeightShard
from .checkpoint import READ_FILES, SMALL_FILES, Checkpoint, CheckpointError, local_directory, small_files, weight_files
from .model_weights import BuildShard, TensorSource, build_shard, builder

if TYPE_CHECKING:
    import ttnn

CACHE_NAME = "qwen25-7b-ttnn"
SUFFIX = ".tensorbin"  # ttnn loads and dumps no other
RECORD, DIGESTS = "checkpoint.json", "digests.json"
MEND = "make room, choose another place with --cache DIR, or use --no-cache"
NOT_KEPT = "weights are packed anew at each start; name another place with XDG_CACHE_HOME"
THREADS = 8  # each packs one shard: 5.5 GB of host memory at most for the 7B, whose embedding takes 1.1 GB


class CacheError(UserError):
    """A cache that cannot be written."""


def cache_root(directory: Optional[str | Path] = None, name: str = CACHE_NAME) -> Path:
    """Return directory/name. Default: $XDG_CACHE_HOME/name if that variable is absolute, else ~/.cache/name.

    CacheError: there is no home, or no such path can be.
    """
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "")
    place = directory or (caches if caches.is_absolute() else "~/.cache")
    try:
        root = Path(place).expanduser().absolute() / name
        root.exists()  # OSError: a name or a path that is too long
        return root
    except OSError as error:
        raise CacheError(f"cache {shown(f'{place}')}: {error.strerror}: name another directory") from error
    except RuntimeError as error:  # no such user, or no HOME and no entry in passwd
        raise CacheError(f"cache {place}: no home directory is known ({error})") from error


def open_checkpoint(
    model: str | Path, *, cache: Optional[str | Path] = None, use_cache: bool = True, revision: Optional[str] = None
) -> "CachedCheckpoint | Checkpoint":
    """Open a checkpoint by its directory or hub id. Reads no weights and does not need ttnn.

    cache: a directory that gets a folder for packed weights; default: the user's cache directory, if it is writable.
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
    """A TensorSource that also builds shards.

    - config: the model's.
    - directory: has config and tokenizer.
    - folder: of the packed weights.
    """

    def __init__(self, model: str | Path, root: Path, revision: Optional[str], *, optional: bool = False):
        """optional: where nothing can be written, the weights are used without the cache."""
        self._model = self._source = model
        self._root, self._optional = root, optional
        self._is_written = True
        is_path = os.path.isdir(model)
        self._names = [f"{model}@{revision or 'main'}", os.path.abspath(model)][is_path:]
        kept = None  # the folder of a checkpoint that is out of reach
        try:
            self.directory = local_directory(model, READ_FILES, revision)
        except CheckpointError:  # it was deleted, or the hub cannot be reached
            kept = self._folder_by_name(self._names)
            if kept is None:
                raise
        else:
            if not is_path:
                # The weights are of this commit, even if the branch moves before they are fetched.
                self._names = [f"{model}@{self.directory.name}", f"{model}@{revision or 'main'}"]
                revision = self.directory.name
            if _has_weights(self.directory, whole=not is_path):
                self._source = self.directory
            else:
                kept = self._folder_by_name(self._names[:1])
        self._revision = revision
        if kept is None:
            self.config = self._checkpoint.config
            return
        self.directory = self.folder = kept
        packed = datetime.fromtimestamp((kept / RECORD).stat().st_mtime)
        logger.warning(f"{model}: its weights are not there; using those packed on {packed:%Y-%m-%d %H:%M}")
        self.config = DecoderConfig.from_json(kept / "config.json")

    @cached_property
    def folder(self) -> Path:
        """By the contents of the weight files, by what config.json changes in packed bytes, and by their packing."""
        contents = _digests(weight_files(self._checkpoint.directory), self._root / DIGESTS)
        digest = _digest(json.dumps([contents, self.config.tie_word_embeddings, _packing()]))[:12]
        name = os.fsencode(os.path.basename(os.path.abspath(self._model))).decode(errors="replace")
        return next(self._root.glob(f"*-{digest}"), self._root / f"{name}-{digest}")

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
                self._name_older_folders()
                self._pack(missing)
                logger.info(f"cache: {_amount(sum(shard.bytes for shard in missing))} written to {self._root}")
        except CacheError as error:
            if not self._optional:
                raise CacheError(f"{error}; {MEND}") from error
            logger.warning(f"{error}: {NOT_KEPT}")
            self._is_written = False
        if self.directory != self.folder:
            # A cache that can only be read is enough. So are links to elsewhere, which are not copied.
            with suppress(OSError, FileError, CheckpointError):
                self._keep_small_files()

    def _pack(self, missing: Sequence[WeightShard]) -> None:
        import ttnn

        self._checkpoint  # is opened before a folder is made for a checkpoint that cannot be read

        def pack(shard: WeightShard) -> int:
            file = self._file(shard)
            tensor = build_shard(shard, self.tensor)
            with self._writing():
                ttnn.dump_tensor(Path(temporary, file.name), tensor)
                with Path(temporary, file.name).open("rb") as written:
                    os.fsync(written.fileno())  # a loss of power leaves no file of zeros
                os.replace(Path(temporary, file.name), file)
            return shard.bytes

        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            folder = TemporaryDirectory(prefix="tmp-", dir=self.folder)
        total, free = sum(shard.bytes for shard in missing), shutil.disk_usage(self.folder).free
        with folder as temporary, ThreadPoolExecutor(min(THREADS, len(os.sched_getaffinity(0)))) as threads:
            if total > free:
                raise CacheError(f"{self._root}: {_amount(total)} are to be written, {_amount(free)} are free")
            try:
                with tqdm(total=total, desc="weights", unit="B", unit_scale=True, leave=False, disable=None) as packed:
                    for size in threads.map(pack, missing):
                        packed.update(size)
            finally:
                threads.shutdown(cancel_futures=True)
                ctypes.CDLL(None).malloc_trim(0)  # what was freed returns to the system

    def _name_older_folders(self) -> None:
        """One line, when a folder is made: which others have its name, for they may be of no use any more."""
        others = [] if self.folder.exists() else sorted(self._root.glob(f"{self.folder.name[:-12]}{'[0-9a-f]' * 12}"))
        if others:
            size = sum(file.stat().st_size for other in others for file in other.glob(f"*{SUFFIX}"))
            names = ", ".join(other.name for other in others)
            logger.info(f"cache: {self._root} also has {names} ({_amount(size)}): delete what is not used any more")

    def _folder_by_name(self, names: Sequence[str]) -> Optional[Path]:
        """The last folder that was packed for the first of these names, else for the next."""
        folders = [record.parent for record in self._root.glob(f"*/{RECORD}")]
        for name in names:
            own = [f for f in folders if _record(f).get("packing") == _packing() and name in _record(f)["names"]]
            if own:
                return max(own, key=lambda folder: (folder / RECORD).stat().st_mtime_ns)
        return None

    def _keep_small_files(self) -> None:
        """For a start without the checkpoint. CheckpointError: one is a link to elsewhere."""
        small = small_files(self.directory)
        same, *_ = filecmp.cmpfiles(self.directory, self.folder, [file.name for file in small], shallow=False)
        if len(same) == len(small) and all(self._folder_by_name([name]) == self.folder for name in self._names):
            return
        for name in {*SMALL_FILES} - {file.name for file in small}:
            (self.folder / name).unlink(missing_ok=True)
        for file in small:
            write_whole(self.folder / file.name, partial(shutil.copyfile, file))
        names = sorted({*_record(self.folder).get("names", ()), *self._names})
        write_json(self.folder / RECORD, {"names": names, "packing": _packing()})

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        return Checkpoint.open(self._source, self._revision)

    def _file(self, shard: WeightShard) -> Path:
        return self.folder / f"{shard.slice.tensors[0]}.{_digest(repr(shard))[:16]}{SUFFIX}"

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError) as error:  # RuntimeError: ttnn's, for every failed write
            raise CacheError(f"{self._root}: cannot be written ({_reason(error)})") from error


def _digests(files: Sequence[Path], known: Path) -> list[str]:
    """SHA-256 of each file. known: a JSON file of digests, so that a file that nothing has touched is read once."""
    kept = {}
    with suppress(FileError, TypeError, ValueError):
        kept = dict(read_json(known))

    def digest(file: Path) -> tuple[str, list]:
        stat, path = file.stat(), f"{file.resolve()}"
        # A copy or a change has another ctime, which nobody can set.
        state = [stat.st_size, stat.st_ino, stat.st_ctime_ns]
        if kept.get(path, [None])[0] == state:
            return path, kept[path]
        found = hashlib.sha256()
        with file.open("rb") as opened:
            while part := opened.read(1 << 22):
                found.update(part)
        return path, [state, found.hexdigest()]

    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(digest, files))
    if any(kept.get(path) != entry for path, entry in found):
        with suppress(FileError):  # a cache that can only be read
            write_json(known, {path: entry for path, entry in (kept | dict(found)).items() if os.path.exists(path)})
    return [entry[1] for _, entry in found]


def _record(folder: Path) -> dict:
    """names, packing; empty if nothing was kept."""
    with suppress(FileError, TypeError, ValueError):
        return dict(read_json(folder / RECORD))
    return {}


def _has_weights(directory: Path, *, whole: bool) -> bool:
    """Whether a directory has weight files. whole: all of them, because a download may be under way."""
    if not whole:
        return any(file for kind in ("*.safetensors", "*.bin") for file in directory.glob(kind))
    with suppress(CheckpointError):
        return all(file.exists() for file in weight_files(directory))
    return False


def _packing() -> str:
    """The versions that determine a shard's bytes."""
    return f"ttnn {ttnn_version() or 'unknown'}, slices {VERSION}"


def _digest(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()


def _amount(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def _reason(error: Exception) -> str:
    """Return the system's message, or the line of ttnn's that follows "info:"."""
    lines = (getattr(error, "strerror", None) or f"{error}").splitlines()
    return lines[lines.index("info:") + 1] if "info:" in lines[:-1] else lines[0]

"""The tile cache's files: one weight shard each, in ttnn's tensor format.

A file's name has the shard's key and a checksum. The key names the bytes' origin: the content of the
tensors, their slice, format, layout, and the versions of this code and of ttnn. Two checkpoints therefore
share the shards that they have in common. The checksum covers key and bytes, so another shard's file under
this name is found.

A file is written in tmp/ and renamed, so it is whole or absent when the process dies. It is not flushed to the disk: a
power cut leaves a file with a wrong checksum, and the file is built again.
"""

import fcntl
import hashlib
import json
import mmap
import os
import re
import stat
import uuid
import zlib
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional

import torch

from models.common.cache_directory import (
    CacheError,
    CacheKind,
    Remover,
    files_in,
    folders_in,
    open_folder,
)
from models.common.mesh import TTNN_VERSION
from models.demos.qwen25_7b.loading import CACHE_NAME
from models.demos.qwen25_7b.weights import WeightShard
from models.demos.qwen25_7b.weights.slices import VERSION

if TYPE_CHECKING:
    import ttnn

SUFFIX = ".tensorbin"  # ttnn loads and dumps no other
NAME = re.compile(rf"(?P<key>[0-9a-f]{{32}})-(?P<crc32>[0-9a-f]{{8}}){re.escape(SUFFIX)}")
# ttnn writes under a name of its own first, and renames it.
TEMPORARY = re.compile(rf"[0-9a-f]{{32}}{re.escape(SUFFIX)}(\.tmp\.\d+\.\d+)?")
PART = re.compile(r".+\.[0-9a-f]{32}\.part")  # a description, while it is written
LEFT_FREE = 256 << 20  # bytes of the disk that the cache never takes
TILES, MODELS, TMP, LOCK = "tiles", "models", "tmp", "lock"
KIND = CacheKind(
    CACHE_NAME,
    {
        TILES: re.compile("[0-9a-f]{2}"),
        MODELS: re.compile(".*-[0-9a-f]{12}", re.DOTALL),
        TMP: TEMPORARY,
    },
    (LOCK,),
)

DigestOf = Callable[[str], str]  # of a tensor, by its Hugging Face name


class Damaged(CacheError):
    """A tile file with other bytes than those that were written."""


def amount(bytes: int) -> str:
    return f"{bytes / 1e9:.2f} GB" if bytes >= 1e8 else f"{bytes / 1e6:.1f} MB"


def digest_of(tensor: torch.Tensor) -> str:
    """Return the SHA-256 of a tensor's dtype, shape and values."""
    digest = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)} ".encode())
    digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def key_of(shard: WeightShard, digest: DigestOf) -> str:
    """Return the shard's key, 32 hex digits."""
    described = {
        "shard": _by_content(asdict(shard), digest),
        "slices": VERSION,
        "ttnn": TTNN_VERSION,
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]


def _by_content(value: Any, digest: DigestOf) -> Any:
    """Replace the names of tensors in a description by their digests."""
    if isinstance(value, dict):
        return {k: digest(v) if k == "tensor" else _by_content(v, digest) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_by_content(item, digest) for item in value]
    return value


@dataclass(frozen=True)
class TileFile:
    key: str  # of the shard
    crc32: int  # of key and bytes
    path: Path

    @classmethod
    def named(cls, root: Path, name: str) -> "Optional[TileFile]":
        """Return the tile file of a name, None if no tile file has such a name."""
        found = NAME.fullmatch(name)
        if not found:
            return None
        return cls(found["key"], int(found["crc32"], 16), root / TILES / name[:2] / name)


class TileFiles:
    """The tile files of a cache. Several threads and processes may use them at once."""

    def __init__(self, root: Path):
        self.root = root
        self._checked: set[Path] = set()  # in this process

    def find(self, key: str) -> Optional[TileFile]:
        """Return a shard's file. Its bytes are not yet checked."""
        names = (name for name in files_in(self.root, TILES, key[:2]) if name.startswith(key))
        return next(filter(None, (TileFile.named(self.root, name) for name in names)), None)

    def load(self, file: TileFile) -> "ttnn.Tensor":
        """Map the shard into memory. The checksum comes first, which also reads the file ahead.

        Damaged: the bytes are others, or the file is gone.
        """
        import ttnn

        try:
            if file.path not in self._checked:
                self.check(file)
                self._checked.add(file.path)
            return ttnn.load_tensor(file.path)
        except RuntimeError as error:  # ttnn's, for a file that went since the check
            raise Damaged(f"{file.path}: cannot be read ({_reason(error)})") from error

    def check(self, file: TileFile) -> None:
        """Damaged: the bytes are not those that were written."""
        try:
            found = crc32_of(file.path, file.key)
        except OSError as error:
            raise Damaged(f"{file.path}: cannot be read ({error.strerror})") from error
        if found != file.crc32:
            raise Damaged(f"{file.path}: damaged, its checksum is {found:08x}")

    def store(self, key: str, tensor: "ttnn.Tensor") -> TileFile:
        """Write a host tensor under its shard's key. OSError: it could not be written, and nothing is left of it."""
        import ttnn

        temporary = f"{uuid.uuid4().hex}{SUFFIX}"
        try:
            if free_bytes(self.root) < LEFT_FREE:
                raise OSError(f"less than {LEFT_FREE >> 20} MiB are free")
            try:
                ttnn.dump_tensor(self.root / TMP / temporary, tensor)
            except RuntimeError as error:  # ttnn's, for every failed write
                raise OSError(_reason(error)) from error
            crc32 = crc32_of(self.root / TMP / temporary, key)
            file = TileFile.named(self.root, f"{key}-{crc32:08x}{SUFFIX}")
            with (
                open_folder(self.root, TMP) as source,
                open_folder(self.root, TILES, key[:2], make=True) as target,
            ):
                os.replace(temporary, file.path.name, src_dir_fd=source, dst_dir_fd=target)
        finally:
            Remover(self.root).file(TMP, temporary)
        self._checked.add(file.path)
        return file

    def discard(self, file: TileFile) -> str:
        """Remove a damaged file. Return why it is still there, or an empty string."""
        remover = Remover(self.root)
        remover.file(*file.path.relative_to(self.root).parts)
        return "".join(remover.failures)

    def __iter__(self) -> Iterator[TileFile]:
        for folder in tile_folders(self.root):
            for name in files_in(self.root, TILES, folder):
                file = TileFile.named(self.root, name)
                if file and file.path.parent.name == folder:
                    yield file

    @contextmanager
    def in_use(self, say: Callable[[str], None]) -> Iterator[None]:
        """Keep other processes from pruning. Files that killed processes left unfinished are removed first."""
        with self._locked() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass  # another process writes: the unfinished files may be its own
            else:
                remover = Remover(self.root)
                self.sweep(remover)
                if remover.failures:
                    say(f"cache: cannot be removed: {', '.join(remover.failures)}")
            fcntl.flock(lock, fcntl.LOCK_SH)
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from using the cache. CacheError: a process uses it now."""
        with self._locked() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CacheError(
                    f"{self.root}: a process is loading with it; try again when that is done"
                ) from None
            yield

    def sweep(self, remover: Remover) -> None:
        """Remove the files that a process was writing when it died."""
        for name in files_in(self.root, TMP):
            if TEMPORARY.fullmatch(name):
                remover.file(TMP, name)
        for model in model_folders(self.root):
            for folder in ((MODELS, model), (MODELS, model, "files"), (MODELS, model, "loads")):
                for name in files_in(self.root, *folder):
                    if PART.fullmatch(name):
                        remover.file(*folder, name)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the lock file. CacheError: it cannot be opened."""
        path = self.root / LOCK
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            handle = os.open(path, flags, 0o600)
        except OSError as error:
            raise CacheError(
                f"{path}: cannot be opened ({error.strerror}); remove it, or check its permissions"
            ) from error
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise CacheError(f"{path}: is no regular file; remove it")
            yield handle
        finally:
            os.close(handle)


def _reason(error: RuntimeError) -> str:
    """Return the line of ttnn's message that says what happened: it follows "info:"."""
    lines = str(error).splitlines()
    return lines[lines.index("info:") + 1] if "info:" in lines[:-1] else lines[0]


def crc32_of(path: Path, key: str) -> int:
    """Return the checksum of key and file: 3 GB/s a thread once the file is in memory."""
    seed = zlib.crc32(key.encode())
    with open(path, "rb", opener=_open_regular) as file:
        if not os.fstat(file.fileno()).st_size:
            return seed  # an empty file cannot be mapped
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
            content.madvise(mmap.MADV_SEQUENTIAL)
            content.madvise(mmap.MADV_WILLNEED)
            return zlib.crc32(content, seed)


def _open_regular(path: str, flags: int) -> int:
    # O_NONBLOCK: the file may have become a FIFO since it was found.
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def free_bytes(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def tile_folders(root: Path) -> list[str]:
    return list(filter(KIND.folders[TILES].fullmatch, folders_in(root, TILES)))


def model_folders(root: Path) -> list[str]:
    return list(filter(KIND.folders[MODELS].fullmatch, folders_in(root, MODELS)))


def tile_sizes(root: Path) -> dict[str, int]:
    """Return the bytes of each tile file of a cache, by name."""
    sizes = {}
    for folder in tile_folders(root):
        sizes |= files_in(root, TILES, folder)
    return sizes

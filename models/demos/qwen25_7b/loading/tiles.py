"""Tile files: one piece each, in ttnn's own tensor format, named by what determines its bytes and by their checksum.

A file is written under another name and renamed, so it is whole or absent whenever the process dies. Nothing is flushed to
the disk for it: what a power cut leaves of a file does not have its checksum, and is made anew.
"""

import fcntl
import mmap
import os
import re
import uuid
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Iterator, Optional

from models.demos.qwen25_7b.loading.place import CacheError

if TYPE_CHECKING:
    import ttnn

SUFFIX = ".tensorbin"  # ttnn loads and dumps no other
NAME = re.compile(rf"(?P<key>[0-9a-f]{{32}})-(?P<crc32>[0-9a-f]{{8}}){re.escape(SUFFIX)}")
PART = ".part"  # of a description, while it is written
LEFT_FREE = 256 << 20  # bytes of the disk that the cache never takes


class Damaged(CacheError):
    """A tile file whose bytes are not those that were written."""


@dataclass(frozen=True)
class TileFile:
    key: str  # of the piece
    crc32: int
    path: Path


class TileFiles:
    """The tile files of a cache directory. Methods may be called by several threads and processes at once."""

    def __init__(self, root: Path):
        self.root = root
        self._checked: set[Path] = set()  # in this process

    def find(self, key: str) -> Optional[TileFile]:
        """The file of a piece, its bytes not yet checked."""
        return next(_tile_files(self._folder(key), f"{key}-*"), None)

    def load(self, file: TileFile) -> "ttnn.Tensor":
        """The piece, mapped; its bytes are compared with their checksum first, which also reads them ahead.

        Damaged: they are others, or gone.
        """
        import ttnn

        try:
            if file.path not in self._checked:
                self.check(file)
                self._checked.add(file.path)
            return ttnn.load_tensor(file.path)
        except OSError as error:
            raise Damaged(f"{file.path}: cannot be read ({error.strerror})") from error
        except RuntimeError as error:  # ttnn's for a file that it cannot open: it went since it was checked
            raise Damaged(f"{file.path}: cannot be read ({_reason(error)})") from error

    def check(self, file: TileFile) -> None:
        """Damaged, unless its bytes are those that were written."""
        found = crc32_of(file.path)
        if found != file.crc32:
            raise Damaged(f"{file.path}: damaged, its checksum is {found:08x}")

    def store(self, key: str, tensor: "ttnn.Tensor") -> TileFile:
        """Keep a host tensor under its piece's key. OSError: it could not be written, and nothing is left of it."""
        import ttnn

        passing = self.root / "tmp" / f"{uuid.uuid4().hex}{SUFFIX}"
        try:
            if free_bytes(self.root) < LEFT_FREE:
                raise OSError(f"less than {LEFT_FREE >> 20} MiB are free")
            try:
                ttnn.dump_tensor(passing, tensor)
            except RuntimeError as error:  # ttnn's for every failed write
                raise OSError(_reason(error)) from error
            crc32 = crc32_of(passing)
            final = self._folder(key) / f"{key}-{crc32:08x}{SUFFIX}"
            final.parent.mkdir(mode=0o700, exist_ok=True)
            os.replace(passing, final)
        finally:
            passing.unlink(missing_ok=True)
        self._checked.add(final)
        return TileFile(key, crc32, final)

    def discard(self, file: TileFile) -> None:
        """Remove a damaged file, where that is allowed; where not, it is found damaged again."""
        try:
            file.path.unlink(missing_ok=True)
        except OSError:
            pass

    def __iter__(self) -> Iterator[TileFile]:
        return _tile_files(self.root / "tiles", "*/*")

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, nobody prunes the cache. What killed processes left half-written is removed if nobody else is at work."""
        with open(self.root / "lock", "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._sweep()
            except BlockingIOError:
                pass
            fcntl.flock(lock, fcntl.LOCK_SH)
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, nobody else is at work. CacheError if somebody is."""
        with open(self.root / "lock", "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CacheError(f"{self.root}: a process is loading with it; try again when that is done") from None
            self._sweep()
            yield

    def _sweep(self) -> None:
        """Remove what was being written when a process died."""
        for file in (*(self.root / "tmp").glob("*"), *(self.root / "models").rglob(f"*{PART}")):
            file.unlink()

    def _folder(self, key: str) -> Path:
        return self.root / "tiles" / key[:2]


def _tile_files(folder: Path, pattern: str) -> Iterator[TileFile]:
    for path in sorted(folder.glob(pattern)):
        name = NAME.fullmatch(path.name)
        if name:
            yield TileFile(name["key"], int(name["crc32"], 16), path)


def _reason(error: RuntimeError) -> str:
    """The line of ttnn's message that says what happened: it follows "info:"."""
    lines = str(error).splitlines()
    return lines[lines.index("info:") + 1] if "info:" in lines[:-1] else lines[0]


def crc32_of(path: Path) -> int:
    """Of the whole file, read as fast as it can be mapped: 3 GB/s a thread once it is in memory."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return 0  # nothing can be mapped of an empty file
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
            content.madvise(mmap.MADV_SEQUENTIAL)
            content.madvise(mmap.MADV_WILLNEED)
            return zlib.crc32(content)


def free_bytes(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize

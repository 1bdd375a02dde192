"""What the cache knows of a checkpoint's directory: which files lay there, and what is in them.

A file of weights counts as the same while its size, its inode and its times of change are the same, to the nanosecond: then
it is not read. All four are compared for equality, never for order, so a clock that goes backwards changes nothing; and the
inode's own time cannot be set by a program, so a file that was overwritten in place with its old date is another. Where they
differ, the weights' content decides. Small files (config, tokenizer) are compared by content.
"""

import hashlib
import json
import os
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Iterable, Mapping, Optional

from models.common.json_file import read_json
from models.demos.qwen25_7b.loading.tiles import PART
from models.demos.qwen25_7b.weights.checkpoint import SINGLE_FILE, SMALL_FILES

VERSION = 1
RECORD = "checkpoint.json"
MOST_BYTES = 64 << 20  # of a small file; a tokenizer has 11 MB

Stat = tuple[int, int, int, int]  # bytes, inode, time of the last write, time of the inode's last change (both in ns)


@dataclass(frozen=True)
class Record:
    directory: str
    weights: Mapping[str, Stat]  # by their paths in the directory
    small: Mapping[str, str]  # digest of each small file, by its name; copies are kept beside the record
    tensors: Mapping[str, str]  # digest of each tensor that was read, by its Hugging Face name

    def agrees(self, directory: Path) -> bool:
        """Whether the directory holds what it held: all of it, or, once its weights were deleted, what is left of it."""
        weights = stats_of(directory, {*self.weights, SINGLE_FILE})
        small = small_files(directory)
        if not weights:
            return small.items() <= self.small.items()
        return weights == self.weights and small == self.small

    def weights_there(self, directory: Path) -> bool:
        return stats_of(directory, self.weights) == self.weights


def folder_of(root: Path, directory: Path) -> Path:
    """Where the cache keeps what it knows of a directory."""
    name = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
    return root / "models" / f"{directory.name[:60]}-{name}"


def files_of(folder: Path) -> Path:
    """Where the copies of the small files are: config and tokenizer can be read from there."""
    return folder / "files"


def read_record(folder: Path) -> Optional[Record]:
    """None if there is none that can be used: then it is made again."""
    try:
        fields = read_json(folder / RECORD)
        if fields.pop("version") != VERSION:
            return None
        fields["weights"] = {name: tuple(stat) for name, stat in fields["weights"].items()}
        record = Record(**fields)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return record if small_files(files_of(folder)) == record.small else None


def write_record(folder: Path, record: Record, small_from: Path) -> None:
    """OSError: it could not be written; what is there then is the old one, or none that can be used."""
    copies = files_of(folder)
    copies.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in small_files(copies).keys() - record.small.keys():
        (copies / name).unlink()
    for name in record.small if small_from != copies else ():
        replace_file(copies / name, (small_from / name).read_bytes())
    replace_file(folder / RECORD, json.dumps({"version": VERSION} | asdict(record), indent=1).encode())


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that it is the old one or the new one at any moment."""
    passing = path.with_name(f"{path.name}.{uuid.uuid4().hex}{PART}")
    try:
        passing.write_bytes(content)
        os.replace(passing, path)
    finally:
        passing.unlink(missing_ok=True)


def stats_of(directory: Path, names: Iterable[str]) -> dict[str, Stat]:
    """Of those files that are there."""
    found = {}
    for name in names:
        try:
            stat = (directory / name).stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        found[name] = (stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
    return found


def small_files(directory: Path) -> dict[str, str]:
    """Digest of each small file of a directory."""
    paths = sorted({path for pattern in SMALL_FILES for path in directory.glob(pattern)})
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
        if path.is_file() and path.stat().st_size <= MOST_BYTES
    }

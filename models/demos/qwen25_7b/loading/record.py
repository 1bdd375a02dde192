"""The cache's record of a checkpoint's files and tensors, and its manifest of each complete load.

Both are JSON files below models/<name>-<digest of the path>/: checkpoint.json, loads/*.json, and files/ with copies of
config and tokenizer.

A file of weights counts as unchanged while its size, inode and two times are equal, to the nanosecond: the
file is then not read. Times are compared for equality, so a clock may go backwards. No program can set the
inode's own time, so a file that was overwritten in place with its old date differs. Where they differ, the
content of the tensors decides. Small files (config, tokenizer) are compared by content.
"""

import hashlib
import json
import os
import re
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

from models.common.cache_directory import files_in, folders_in, open_folder
from models.common.json_file import read_json
from models.common.mesh import TTNN_VERSION
from models.common.user_file import MIB, FileError, read_bytes
from models.demos.qwen25_7b.loading.tiles import MODELS, TileFile, model_folders
from models.demos.qwen25_7b.weights.checkpoint import SINGLE_FILE, SMALL_FILES
from models.demos.qwen25_7b.weights.slices import VERSION as SLICES_VERSION

RECORD_VERSION = 1
MANIFEST_VERSION = 2
RECORD, FILES, LOADS = "checkpoint.json", "files", "loads"
MANIFEST = re.compile(r"[0-9a-f]{16}\.json")
LIMIT = 64 * MIB  # of a small file; a tokenizer has 11 MB


class Stat(NamedTuple):
    bytes: int
    inode: int
    modified: int  # ns
    changed: int  # ns, of the inode: a hard link, a rename and a chmod change it, too


class Folder(NamedTuple):
    """The cache's directory for its record of a checkpoint."""

    root: Path
    name: str

    @classmethod
    def of(cls, root: Path, directory: Path) -> "Folder":
        digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
        return cls(root, f"{directory.name[:60]}-{digest}")

    @property
    def path(self) -> Path:
        return self.root / MODELS / self.name

    @property
    def files(self) -> Path:
        """Copies of the small files: config and tokenizer can be read from there."""
        return self.path / FILES

    def write(self, content: bytes, *names: str) -> None:
        """Replace a file, so that at any time the old or the new one exists. OSError: it cannot be written."""
        *folders, name = names
        part = f"{name}.{uuid.uuid4().hex}.part"
        with open_folder(self.root, MODELS, self.name, *folders, make=True) as folder:
            try:
                with open(
                    part, "xb", opener=lambda p, flags: os.open(p, flags, dir_fd=folder)
                ) as f:
                    f.write(content)
                os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                try:
                    os.unlink(part, dir_fd=folder)
                except FileNotFoundError:
                    pass
                raise

    def remove(self, *names: str) -> None:
        with open_folder(self.root, MODELS, self.name, *names[:-1]) as folder:
            os.unlink(names[-1], dir_fd=folder)


@dataclass(frozen=True)
class Record:
    """What the cache knows of a checkpoint's directory."""

    directory: str
    weights: Mapping[str, Stat]  # by their paths in the directory
    small: Mapping[str, str]  # digest of each small file, by its name
    tensors: Mapping[str, str]  # digest of each tensor that was read, by its Hugging Face name

    def agrees(self, directory: Path) -> bool:
        """Return whether the directory holds the same files, or the rest of them after its weights were deleted."""
        weights = stats_of(directory, {*self.weights, SINGLE_FILE})
        small = small_files(directory)
        if not weights:
            return small.items() <= self.small.items()
        return weights == self.weights and small == self.small


def read_record(folder: Folder) -> Optional[Record]:
    """Return the record, None if there is none that can be used: then it is made again."""
    if RECORD not in files_in(folder.root, MODELS, folder.name):
        return None
    try:
        fields = read_json(folder.path / RECORD)
        if fields.pop("version") != RECORD_VERSION:
            return None
        record = Record(
            directory=_text(fields["directory"]),
            weights={_text(name): Stat(*map(_count, s)) for name, s in fields["weights"].items()},
            small=_texts(fields["small"]),
            tensors=_texts(fields["tensors"]),
        )
    except (FileError, ValueError, LookupError, TypeError, AttributeError):
        return None
    if FILES not in folders_in(folder.root, MODELS, folder.name):
        return None
    try:
        return record if small_files(folder.files) == record.small else None
    except FileError:
        return None


def write_record(folder: Folder, record: Record, small_from: Path) -> None:
    """Write the record, and copies of the small files. OSError: the old record stays, or none that can be used."""
    for name in small_files(folder.files).keys() - record.small.keys():
        folder.remove(FILES, name)
    for name in record.small if small_from != folder.files else ():
        folder.write(read_bytes(small_from / name, LIMIT), FILES, name)
    folder.write(_json({"version": RECORD_VERSION} | asdict(record)), RECORD)


@dataclass(frozen=True)
class Manifest:
    """The tile files of one split and recipe of a checkpoint. It is written last: a load with a manifest was complete."""

    directory: str  # of the checkpoint
    tp: int
    recipe: str
    ttnn: str  # the version that packed them
    slices: int  # the version of the code that read them
    files: Mapping[str, int]  # bytes of each tile file, by its name

    @classmethod
    def of(cls, directory: Path, tp: int, recipe: str, files: Sequence[TileFile]) -> "Manifest":
        sizes = {file.path.name: file.path.stat().st_size for file in files}
        return cls(str(directory), tp, recipe, TTNN_VERSION, SLICES_VERSION, sizes)

    @property
    def bytes(self) -> int:
        return sum(self.files.values())

    @property
    def is_current(self) -> bool:
        return (self.ttnn, self.slices) == (TTNN_VERSION, SLICES_VERSION)

    def missing(self, sizes: Mapping[str, int]) -> list[str]:
        """Return the tile files that are not there, or not of their size. sizes: of the cache's tile files."""
        return [name for name, size in self.files.items() if sizes.get(name) != size]


def manifest_name(keys: Sequence[str]) -> str:
    """Return the file name for exactly these shards. Other checkpoints, splits, recipes and versions have other keys."""
    return f"{hashlib.sha256(' '.join(keys).encode()).hexdigest()[:16]}.json"


def read_manifest(folder: Folder, name: str) -> Optional[Manifest]:
    """Return a manifest, None if there is none that can be used."""
    if name not in files_in(folder.root, MODELS, folder.name, LOADS):
        return None
    try:
        fields = read_json(folder.path / LOADS / name)
        if fields.pop("version") != MANIFEST_VERSION:
            return None
        manifest = Manifest(
            directory=_text(fields["directory"]),
            tp=_count(fields["tp"]),
            recipe=_text(fields["recipe"]),
            ttnn=_text(fields["ttnn"]),
            slices=_count(fields["slices"]),
            files={_text(name): _count(size) for name, size in fields["files"].items()},
        )
    except (FileError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return manifest if all(TileFile.named(folder.root, file) for file in manifest.files) else None


def write_manifest(folder: Folder, name: str, manifest: Manifest) -> None:
    """OSError: it cannot be written."""
    folder.write(_json({"version": MANIFEST_VERSION} | asdict(manifest)), LOADS, name)


def manifest_names(folder: Folder) -> list[str]:
    """Return the file names of all manifests, also of those that cannot be used."""
    return list(filter(MANIFEST.fullmatch, files_in(folder.root, MODELS, folder.name, LOADS)))


def all_manifests(root: Path) -> Iterator[tuple[Folder, str, Manifest]]:
    """Yield every manifest that can be used, with its place."""
    for model in model_folders(root):
        folder = Folder(root, model)
        for name in manifest_names(folder):
            manifest = read_manifest(folder, name)
            if manifest:
                yield folder, name, manifest


def stats_of(directory: Path, names: Iterable[str]) -> dict[str, Stat]:
    """Return the stat of each file that is there."""
    found = {}
    for name in names:
        try:
            stat = os.stat(directory / name)
        except OSError:
            continue
        found[name] = Stat(stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
    return found


def small_files(directory: Path) -> dict[str, str]:
    """Return the digest of each small file of a directory. FileError: one cannot be read."""
    paths = sorted({path for pattern in SMALL_FILES for path in directory.glob(pattern)})
    return {
        path.name: hashlib.sha256(read_bytes(path, LIMIT)).hexdigest()
        for path in paths
        if os.path.isfile(path) and os.path.getsize(path) <= LIMIT
    }


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode()


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a string was expected, got {value!r}")
    return value


def _texts(value: Mapping[str, Any]) -> dict[str, str]:
    return {_text(name): _text(text) for name, text in value.items()}


def _count(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"an integer was expected, got {value!r}")
    return value

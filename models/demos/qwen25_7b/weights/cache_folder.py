"""Which folder of the cache a checkpoint has, and the copies of its small files for a start without it."""

import filecmp
import hashlib
import json
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Optional, Sequence

from ..config import DecoderConfig
from ..files import FileError, read_json
from ..plans.machines import ttnn_version
from ..plans.slices import VERSION
from .checkpoint import CheckpointError, small_files, weight_files

RECORD = "checkpoint.json"
SAMPLE = 1024  # bytes
MOST_HEADER = 100_000_000  # bytes, safetensors' own limit


@dataclass(frozen=True)
class Copies:
    """The small files of a checkpoint that was opened by a name: its path, or ID@REVISION."""

    name: str
    directory: Path

    @classmethod
    def of(cls, folder: Path, name: str) -> "Copies":
        return cls(name, folder / _digest(name))

    @classmethod
    def find(cls, root: Path, names: Sequence[str]) -> Optional["Copies"]:
        """The copies of a checkpoint that was opened by the first of these names, else by the next."""
        for name in names:
            for record in root.glob(f"*/{_digest(name)}/{RECORD}"):
                copies = cls(name, record.parent)
                if copies.record().get("packing") == packing():
                    return copies
        return None

    def record(self) -> dict:
        """name, packing, tie_word_embeddings, notes; empty if there are no copies."""
        with suppress(FileError, TypeError, ValueError):
            return dict(read_json(self.directory / RECORD))
        return {}

    def __str__(self) -> str:
        date = datetime.fromtimestamp((self.directory / RECORD).stat().st_mtime)
        return f"{self.name}, packed on {date:%Y-%m-%d %H:%M}"

    def write(self, directory: Path, tie_word_embeddings: bool, notes: Sequence[str]) -> None:
        """Copy the small files here; other folders lose this name. CheckpointError: one is a link to elsewhere."""
        small = small_files(directory)
        same, *_ = filecmp.cmpfiles(directory, self.directory, [file.name for file in small])
        if len(same) == len(small) and self.record():
            return
        folder = self.directory.parent
        for former in folder.parent.glob(f"*/{self.directory.name}"):
            shutil.rmtree(former, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix="tmp-", dir=folder) as temporary:
            whole = Path(temporary) / "copies"
            whole.mkdir()
            for file in small:
                shutil.copy2(file, whole / file.name)
            record = dict(name=self.name, packing=packing(), tie_word_embeddings=tie_word_embeddings, notes=notes)
            (whole / RECORD).write_text(json.dumps(record, indent=1))
            os.replace(whole, self.directory)


def folder_of(root: Path, model: str | Path, directory: Path) -> Path:
    """The folder of the weights in `directory`: by their contents, and by what config.json changes in packed bytes."""
    tied = DecoderConfig.from_json(directory / "config.json").tie_word_embeddings
    digest = _digest(json.dumps([weights_digest(directory), tied, packing()]))
    name = os.fsencode(os.path.basename(os.path.abspath(model))).decode(errors="replace")
    return next(root.glob(f"*-{digest}"), root / f"{name}-{digest}")


def has_weights(directory: Path, *, whole: bool) -> bool:
    """Whether a directory has weight files. whole: all of them, because a download may be under way."""
    if not whole:
        return any(file for kind in ("*.safetensors", "*.bin") for file in directory.glob(kind))
    with suppress(CheckpointError):
        return all(file.exists() for file in weight_files(directory))
    return False


def weights_digest(directory: Path) -> str:
    """A digest of the contents of the files that a checkpoint's tensors are read from, wherever these lie.

    Of each file: size, time, header, and the first, the middle and the last SAMPLE bytes of each tensor. That takes 20
    ms for the 7B's 339 tensors. The time tells of changes between the samples.
    """
    digest = hashlib.sha256()
    for file in weight_files(directory):
        # Opening the checkpoint says what is wrong.
        with suppress(OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
            with file.open("rb") as opened:
                stat, size = os.fstat(opened.fileno()), opened.read(8)
                header = opened.read(min(int.from_bytes(size, "little"), MOST_HEADER))
                digest.update(f"{stat.st_size} {stat.st_mtime_ns} ".encode() + size + header)
                for name, entry in json.loads(header).items():
                    if name != "__metadata__":
                        first, end = entry["data_offsets"]
                        count = min(SAMPLE, end - first)
                        for at in {first, (first + end - count) // 2, end - count}:
                            opened.seek(len(size) + len(header) + at)
                            digest.update(opened.read(count))
    return digest.hexdigest()


def packing() -> str:
    """The versions that determine a shard's bytes."""
    return f"ttnn {ttnn_version() or 'unknown'}, slices {VERSION}"


def _digest(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:12]

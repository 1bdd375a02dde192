"""Files that a command writes. A file that exists is replaced only by one of its own kind, and never in part."""

import os
import tempfile
import zipfile
from pathlib import Path
from typing import Callable

_RECORD_KEYS = b"mesh", b"ring", b"ops", b"skipped", b"system"
_BEGINNINGS = {
    "cases --to": b'"""The distinct operations of ',
    "compare --json": b'{\n "bracket":',
    "compare --html": b'<!doctype html>\n<meta charset="utf-8">\n<title>golden-mesh compare',
    "replay --json": b'{"op": "ttnn.',
}


def is_kind(path: Path, kind: str) -> bool:
    """Whether the file was written by the option `kind`, or is empty."""
    if not path.stat().st_size:
        return True
    if kind == "record --to":
        return _is_record(path)
    beginning = _BEGINNINGS[kind]
    with path.open("rb") as file:
        return file.read(len(beginning)) == beginning


def _is_record(path: Path) -> bool:
    """Whether torch.save wrote the file, with the keys of a record. torch is not loaded."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as file:
        pickles = [file.read(name) for name in file.namelist() if name.endswith("/data.pkl")]
    return len(pickles) == 1 and all(key in pickles[0] for key in _RECORD_KEYS)


def part_of(path: Path) -> Path:
    """A new file beside `path`, with the rights of a new file. os.replace() gives it the name."""
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=".golden-mesh-", suffix=".part")
    mask = os.umask(0)
    os.umask(mask)
    os.fchmod(handle, 0o666 & ~mask)
    os.close(handle)
    return Path(part)


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Call write() with a part, and rename it to `path`. A device such as /dev/stdout is written itself."""
    if path.exists() and not path.is_file():
        write(path)
        return
    part = part_of(path)
    try:
        write(part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)

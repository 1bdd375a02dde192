"""Files that a command writes. A file that exists is replaced only by one of its own kind, and never in part."""

import atexit
import hashlib
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Callable

from golden_mesh.errors import GoldenMeshError

_DIGEST = b"\n# golden-mesh cases replaces this file while its digest is "
_BEGINNINGS = {  # patterns
    "cases --to": b'"""The distinct operations of ',
    "compare --json": b'{\n "bracket":',
    "compare --html": b'<!doctype html>\n<meta charset="utf-8">\n<title>golden-mesh compare',
    "record --to": b"PK.*/data.pkl.*mesh.*ring.*ops",  # torch.save's archive begins with the dict
    "replay --json": b'{"op": "ttnn.',
}


def signed(contents: bytes) -> bytes:
    """The contents with a last line that has their digest. It replaces a line of an earlier digest."""
    before = contents.rpartition(_DIGEST)[0] or contents
    return before + _DIGEST + hashlib.sha256(before).hexdigest().encode() + b"\n"


def check_kind(path: Path, kind: str) -> None:
    """GoldenMeshError: the file exists, and another program wrote it, or its user has edited it."""
    if not path.is_file() or not path.stat().st_size:
        return
    with path.open("rb") as file:
        beginning = file.read(1024)  # of a record with the file's name
    edited = kind == "cases --to" and signed(path.read_bytes()) != path.read_bytes()
    if edited or not re.match(_BEGINNINGS[kind], beginning, re.DOTALL):
        raise GoldenMeshError(f"{kind} {path}: the file exists, and {kind} did not write it so: name another file")


def at_exit(report: Callable[[], object]) -> None:
    """Call report() when this process exits. A file that cannot be written is one line."""

    def one_line() -> None:
        try:
            report()
        except GoldenMeshError as error:
            print(f"error: {error}", file=sys.stderr)

    atexit.register(one_line)


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Call write() with a part, and rename it to `path`. A device such as /dev/stdout is written itself.

    GoldenMeshError: it cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            write(path)
            return
        with tempfile.TemporaryDirectory(prefix=".golden-mesh-", dir=path.parent) as folder:
            part = Path(folder, path.name)
            write(part)
            os.replace(part, path)
    except (OSError, RuntimeError) as error:  # RuntimeError: torch.save's
        reason = getattr(error, "strerror", None) or f"{error}".split("\n")[0]
        raise GoldenMeshError(f"{path} cannot be written: {reason}; make room, or name another file") from error

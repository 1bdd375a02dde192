"""Write a file that a user names: tried before the work, written whole or not at all, and never lost."""

import json
import os
import tempfile
from pathlib import Path
from typing import Callable

from models.common.errors import UserError


def check_output(option: str, file: Path, *, new: bool = False) -> None:
    """UserError unless `file` can be written. Nothing is left behind.

    option: the command line's name for the file. new: refuse a file that exists.
    """
    if os.path.isdir(file):
        raise UserError(f"{option} {file}: is a directory; give a file in it")
    if os.path.lexists(file):
        if new:
            raise UserError(f"{option} {file}: exists; give a new name")
        if not os.path.isfile(file):
            raise UserError(f"{option} {file}: is no regular file; give another name")
        if not os.access(file, os.W_OK):
            raise UserError(f"{option} {file}: is write-protected; give another name")
    _try_writing(option, file, _part(file))


def check_directory(option: str, directory: Path) -> None:
    """UserError unless files can be written to `directory`, which may be still to be made. Nothing is left behind."""
    _try_writing(option, directory, directory / f".probe.{os.getpid()}")


def _try_writing(option: str, named: Path, probe: Path) -> None:
    """Make the probe's directory and the probe, and remove both again. named: the path for the message."""
    made: list[Path] = []
    try:
        missing = [p for p in (probe.parent, *probe.parent.parents) if not p.exists()]
        for path in reversed(missing):
            path.mkdir()
            made.append(path)
        probe.write_bytes(b"x")
        probe.unlink()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or f"{error}"
        raise UserError(
            f"{option} {named}: cannot be written ({reason}); give another place"
        ) from error
    finally:
        for path in reversed(made):
            path.rmdir()


def write_whole(file: Path, write: Callable[[Path], None]) -> None:
    """Write a file under another name in its directory, and rename it.

    write: writes the content to the path that it gets.
    UserError: the place cannot be written any more. The content is then in the temporary directory, which the error names.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _write_and_rename(file, write)
    except OSError as error:
        kept = Path(tempfile.mkdtemp(prefix="qwen25_7b-")) / file.name
        write(kept)
        raise UserError(
            f"{file}: cannot be written ({error.strerror}); it is kept as {kept}"
        ) from error


def write_json(file: Path, contents: dict) -> None:
    """Write an object as indented JSON, as write_whole does."""
    text = json.dumps(contents, indent=2) + "\n"
    write_whole(file, lambda part: part.write_text(text, encoding="utf-8"))


def _write_and_rename(file: Path, write: Callable[[Path], None]) -> None:
    part = _part(file)
    try:
        write(part)
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)


def _part(file: Path) -> Path:
    """The name under which `file` is written. The suffix stays: libraries choose a format by it."""
    return file.with_name(f".{file.stem}.{os.getpid()}{file.suffix}")

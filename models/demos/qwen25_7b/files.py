"""Files that a user names: read with one line of error, written whole or not at all."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any, Callable, Iterable, Optional

from .errors import UserError

# What lies in folders that people take for a checkpoint.
OTHER_WEIGHTS = {"*.gguf": "llama.cpp's weights", "consolidated*": "weights in their publisher's format"}
OTHER_FORMATS = OTHER_WEIGHTS | {"tekken.json": "Mistral's own tokenizer", "tokenizer.model": "a tokenizer"}


class FileError(UserError):
    """A file cannot be read or written, or does not hold the content that was expected."""


def read_text(file: str | Path, option: str = "") -> str:
    """The content of a UTF-8 text file, without a byte-order mark. FileError: absent, unreadable or not UTF-8.

    option: the command line's name for the file, for messages.
    """
    label = _label(option, file)
    try:
        return Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{label}: not UTF-8 (byte {error.start}: {error.reason}); convert it to UTF-8") from error
    except OSError as error:
        raise FileError(f"{label}: {error.strerror}") from error


def read_json(file: str | Path, option: str = "") -> Any:
    """The value in a JSON file. option: as in read_text. FileError: the file cannot be read, or is not JSON."""
    return parse_json(read_text(file, option), _label(option, file))


def read_json_lines(text: str, label: str) -> list[tuple[int, Any]]:
    """(number, value) of each line of JSON that is not empty. label: names the file. FileError: one is not JSON."""
    lines = enumerate(text.split("\n"), 1)  # a string of JSON may hold U+2028
    return [(number, parse_json(line, f"{label}, line {number}")) for number, line in lines if line.strip()]


def parse_json(text: str | bytes, label: str) -> Any:
    """The value of a JSON text. label: names it in messages. FileError: it is not JSON."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise FileError(f"{label}: not JSON ({error})") from error


def other_format(directory: Path, patterns: Iterable[str] = OTHER_FORMATS) -> Optional[str]:
    """Return what a folder holds in another format than Hugging Face's, and what to do; None if nothing is known."""
    for pattern in patterns:
        for file in sorted(directory.glob(pattern)):
            return (
                f"{directory}: holds {file.name} ({OTHER_FORMATS[pattern]}); use the checkpoint in Hugging Face's "
                "format: config.json, *.safetensors and tokenizer.json"
            )
    return None


def check_output(option: str, file: Path, *, new: bool = False) -> None:
    """UserError unless `file` can be written. option: as in read_text. new: refuse a file that exists."""
    if file.exists() and not file.is_file():
        raise UserError(f"{option} {file}: not a regular file; give another name")
    if file.exists() and new:
        raise UserError(f"{option} {file}: exists; give a new name")
    check_directory(option, file.parent)


def check_directory(option: str, directory: Path) -> None:
    """UserError unless files can be written to `directory`, which may be still to be made."""
    nearest = next(folder for folder in (directory, *directory.absolute().parents) if folder.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        raise UserError(f"{option} {directory}: cannot be written to {nearest}; give another place")


def write_whole(file: Path, write: Callable[[Path], None]) -> None:
    """Write a file, by `write(path)`, in a new folder beside its place, and move it there: whole or not at all.

    FileError: it cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=file.parent) as folder:
            part = Path(folder, file.name)
            write(part)
            mask = os.umask(0)
            os.umask(mask)
            part.chmod(0o666 & ~mask)  # safetensors writes for its user alone
            os.replace(part, file)
    except OSError as error:
        reason = error.strerror or error
        raise FileError(f"--out {file}: cannot be written ({reason}); make room, or give another place") from error


def write_text(file: Path, text: str) -> None:
    """Write UTF-8 text, as write_whole does."""
    write_whole(file, lambda part: part.write_text(text, encoding="utf-8"))


def write_json(file: Path, contents: dict | list) -> None:
    """Write an object or a list as indented JSON, as write_whole does."""
    write_text(file, json.dumps(contents, indent=2) + "\n")


def _label(option: str, path: str | Path) -> str:
    return f"{option} {path}".strip()

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
    """A file cannot be read, or does not hold the content that was expected."""


def read_text(file: str | Path, option: str = "") -> str:
    """The content of a UTF-8 text file, without a byte-order mark.

    option: the command line's name for the file, for messages.
    FileError: the file is absent, unreadable or not UTF-8.
    """
    label = f"{option} {file}".strip()
    try:
        return Path(file).read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise FileError(f"{label}: not found") from error
    except OSError as error:
        raise FileError(f"{label}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{label}: not UTF-8 (byte {error.start}: {error.reason}); convert it to UTF-8") from error


def read_json(file: str | Path, option: str = "") -> Any:
    """The value in a JSON file.

    option: the command line's name for the file, for messages.
    FileError: the file cannot be read, or is not JSON.
    """
    text = read_text(file, option)
    try:
        return json.loads(text)
    except ValueError as error:
        raise FileError(f"{option} {file}: not JSON ({error})".lstrip()) from error


def read_json_lines(text: str, label: str) -> list[tuple[int, Any]]:
    """(number, value) of each line of JSON. Empty lines are left out.

    label: names the file in messages. FileError: a line is not JSON.
    """
    values = []
    for number, line in enumerate(text.split("\n"), 1):  # a string of JSON may hold U+2028
        try:
            values += [(number, json.loads(line))] if line.strip() else []
        except ValueError as error:
            raise FileError(f"{label}, line {number}: not JSON ({error})") from error
    return values


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
    """UserError unless `file` can be written: tried before minutes of work. Nothing is left behind.

    option: the command line's name for the file. new: refuse a file that exists.
    """
    if file.exists() and not file.is_file():
        raise UserError(f"{option} {file}: not a regular file; give another name")
    if new and file.exists():
        raise UserError(f"{option} {file}: exists; give a new name")
    check_directory(option, file.parent)


def check_directory(option: str, directory: Path) -> None:
    """UserError unless files can be written to `directory`, which may be still to be made. Nothing is left behind."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"x")
    except OSError as error:
        raise UserError(f"{option} {directory}: cannot be written ({error.strerror}); give another place") from error


def write_whole(file: Path, write: Callable[[Path], None]) -> None:
    """Write a file under another name in its directory, and rename it.

    write: writes the content to the path that it gets.
    """
    # Libraries choose a format by the suffix.
    part = file.with_name(f".{file.stem}.{os.getpid()}{file.suffix}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(part)
            os.replace(part, file)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{file}: cannot be written ({error.strerror})") from error


def write_json(file: Path, contents: dict | list) -> None:
    """Write an object or a list as indented JSON, as write_whole does."""
    text = json.dumps(contents, indent=2) + "\n"
    write_whole(file, lambda part: part.write_text(text, encoding="utf-8"))

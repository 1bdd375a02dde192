"""Read a file that a user names: a regular file, up to a limit. Prompts may also come from a pipe."""

import os
import select
import stat
from pathlib import Path

from models.common.errors import UserError
from models.common.terminal import complain

MIB = 1 << 20
NOTICE_SECONDS = 2  # without data on a pipe before the user gets a message
SILENCE_SECONDS = 60  # without data on a pipe before the read fails
CHUNK = 1 << 20
KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class FileError(UserError):
    """A file cannot be read, or does not hold the content that was expected."""


def read_bytes(file: str | Path, limit: int, option: str = "", *, pipe: bool = False) -> bytes:
    """Return the file's content.

    limit: bytes. option: the command line's name for the file, for messages. pipe: also accept a pipe.
    FileError: the file is absent, is not a regular file, is not readable, or is longer than `limit`.
    """
    label = f"{option} {file}".strip()
    try:
        # Not Path.stat, which raises other errors for odd names on some versions of Python.
        kind = stat.S_IFMT(os.stat(file).st_mode)
        if kind != stat.S_IFREG and not (pipe and kind == stat.S_IFIFO):
            expected = "a regular file or a pipe" if pipe else "a regular file"
            found = KINDS.get(kind, "no regular file")
            raise FileError(f"{label}: cannot be read (it is {found}); give {expected}")
        # O_NONBLOCK: the file may have become a FIFO since, and opening a FIFO waits for a writer.
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            is_pipe = stat.S_ISFIFO(os.fstat(handle).st_mode)
            content = _read_up_to(handle, limit + 1, label if is_pipe else None)
        finally:
            os.close(handle)
    except FileNotFoundError as error:
        raise FileError(f"{label}: not found") from error
    except OSError as error:
        raise FileError(f"{label}: cannot be read ({error.strerror})") from error
    except ValueError as error:  # a NUL in the name
        raise FileError(f"{label}: not found ({error})") from error
    if len(content) > limit:
        raise FileError(f"{label}: longer than {limit / MIB:g} MiB, which is the limit; shorten it")
    return content


def read_text(file: str | Path, limit: int, option: str = "", *, pipe: bool = False) -> str:
    """Return the content of a UTF-8 text file. The arguments and errors are those of read_bytes."""
    try:
        return read_bytes(file, limit, option, pipe=pipe).decode("utf-8")
    except UnicodeDecodeError as error:
        label = f"{option} {file}".strip()
        raise FileError(
            f"{label}: not UTF-8 (byte {error.start}: {error.reason}); convert it to UTF-8"
        ) from error


def _read_up_to(handle: int, limit: int, pipe: str | None) -> bytes:
    """Read to the end, or `limit` bytes. pipe: its name, where the handle is a pipe."""
    content = bytearray()
    while len(content) < limit:
        if pipe is not None:
            _wait_for(handle, pipe)
        chunk = os.read(handle, min(CHUNK, limit - len(content)))
        if not chunk:
            break
        content += chunk
    return bytes(content)


def _wait_for(handle: int, label: str) -> None:
    """Wait until the pipe has bytes or its last writer closes it."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    if poll.poll(1000 * NOTICE_SECONDS):
        return
    complain(f"{label}: waiting for the program that writes this pipe")
    if not poll.poll(1000 * (SILENCE_SECONDS - NOTICE_SECONDS)):
        raise FileError(
            f"{label}: this pipe gave nothing for {SILENCE_SECONDS} seconds; write a file first"
        )

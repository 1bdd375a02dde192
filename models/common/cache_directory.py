"""Cache directories of this program: marked as its own, writable by their owner alone, and emptied by name.

A mark is a CACHEDIR.TAG file (https://bford.info/cachedir/), so backup programs skip the directory. Its second line
names the cache and its format. A directory with other content and no mark belongs to the user and is refused.

Functions below a cache's root take the names of folders and of a file. They follow no symbolic link below the root.
"""

import os
import re
import stat
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterator, Mapping

from models.common.errors import UserError
from models.common.user_file import KINDS, FileError, read_bytes

TAG_FILE = "CACHEDIR.TAG"
SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55\n"
FORMAT = 1
ELSEWHERE = "choose another place with --cache"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class CacheError(UserError):
    """A cache that cannot be used, or that holds damaged files."""


def user_cache(name: str) -> Path:
    """Return $XDG_CACHE_HOME/name if that variable is absolute, else ~/.cache/name (XDG base directories)."""
    named = Path(os.environ.get("XDG_CACHE_HOME") or "")
    caches = named if named.is_absolute() else Path(os.path.expanduser("~/.cache"))
    return caches / name


@dataclass(frozen=True)
class CacheKind:
    """The mark of a cache and the contents of its folders.

    folders: the pattern of the names in each folder. An unmarked directory that holds only these is from an
    earlier version of this program, and is marked.
    """

    name: str
    folders: Mapping[str, re.Pattern] = field(default_factory=dict)
    files: tuple[str, ...] = ()

    @property
    def mark(self) -> str:
        return f"{SIGNATURE}# A cache of {self.name}, format {FORMAT}. Its files are made again when they are missing.\n"

    def prepare(self, root: Path) -> str | None:
        """Make the directory and mark it. Return None if it can be written, else why not; it can still be read then.

        CacheError: the directory holds other files, others may write to it, or it is damaged.
        """
        try:
            os.makedirs(root, mode=0o700, exist_ok=True)
        except FileExistsError:
            return "Not a directory"
        except OSError as error:
            return f"{error.strerror}"
        is_marked = self._check(root)
        if not os.access(root, os.W_OK):
            return "no right to write there"
        try:
            if not is_marked:
                self._write_mark(root)
            for name in self.folders:
                with suppress_exists():
                    os.mkdir(root / name, mode=0o700)
        except OSError as error:
            return f"{error.strerror}"
        return None

    def check(self, root: Path) -> None:
        """CacheError: there is no such cache, others may write to it, or it is damaged."""
        if not os.path.isdir(root):
            raise CacheError(f"{root}: there is no cache")
        if not self._check(root) and not _names(root):
            raise CacheError(f"{root}: there is no cache, the directory is empty")

    def _check(self, root: Path) -> bool:
        """Return whether the directory is marked. It may be unmarked where it is empty or from an earlier version."""
        check_owner(root)
        try:
            is_marked = self._is_marked(root)
        except OSError as error:
            raise CacheError(f"{root}: cannot be read ({error.strerror}); {ELSEWHERE}") from error
        for name in self.folders:
            _check_is_folder(root / name)
        return is_marked

    def _is_marked(self, root: Path) -> bool:
        names = _names(root)
        if not names:
            return False
        content = ""
        if TAG_FILE in names and stat.S_ISREG(os.lstat(root / TAG_FILE).st_mode):
            try:
                content = read_bytes(root / TAG_FILE, 1 << 16).decode("utf-8", "replace")
            except FileError as error:
                raise CacheError(f"{error}; {ELSEWHERE}") from error
        lines = content.splitlines()
        if content.startswith(SIGNATURE) and len(lines) > 1:
            mark = re.match(rf"# A cache of {re.escape(self.name)}, format (\d+)\.", lines[1])
            if mark and int(mark[1]) > FORMAT:
                raise CacheError(
                    f"{root}: was written by a newer version of this program (format {mark[1]}); {ELSEWHERE}"
                )
            if mark:
                return True
        if TAG_FILE in names and self.mark.startswith(content) and self._has_shape(root, names):
            return False  # an earlier version's cache, or a mark that was cut off
        raise CacheError(
            f"{root}: holds files and is not a cache of this program; give a new or empty directory, such as "
            f"{root / self.name.replace(' ', '-')}"
        )

    def _has_shape(self, root: Path, names: set[str]) -> bool:
        if names - {TAG_FILE, *self.files, *self.folders}:
            return False
        return all(
            pattern.fullmatch(name)
            for folder, pattern in self.folders.items()
            if folder in names and stat.S_ISDIR(os.lstat(root / folder).st_mode)
            for name in _names(root / folder)
        )

    def _write_mark(self, root: Path) -> None:
        # Not truncated first: another process may write the same mark now.
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(root / TAG_FILE, flags, 0o600)
        try:
            os.write(handle, self.mark.encode())
        finally:
            os.close(handle)


def check_owner(root: Path) -> None:
    """CacheError if others may write to it. Files of theirs would run as weights."""
    found = os.stat(root)
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CacheError(
            f"{root}: others may write there (mode {stat.S_IMODE(found.st_mode):04o}), so its weights may be theirs: "
            f"chmod go-w {root}, or {ELSEWHERE}"
        )
    if found.st_uid not in (os.getuid(), 0):
        raise CacheError(
            f"{root}: belongs to user {found.st_uid}, so its weights may be theirs: {ELSEWHERE}"
        )


@contextmanager
def suppress_exists() -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        pass


@contextmanager
def open_folder(root: Path, *names: str, make: bool = False) -> Iterator[int]:
    """Open a folder below the root, for dir_fd arguments. make: make folders that are missing.

    OSError: a name is absent, is no directory, or is a symbolic link.
    """
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            if make:
                with suppress_exists():
                    os.mkdir(name, mode=0o700, dir_fd=handle)
            below = os.open(name, _FOLDER, dir_fd=handle)
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)


def files_in(root: Path, *folder: str) -> dict[str, int]:
    """Return the bytes of each regular file in a folder, by name. Empty if the folder cannot be read."""
    return {name: s.st_size for name, s in _stats_in(root, folder) if stat.S_ISREG(s.st_mode)}


def folders_in(root: Path, *folder: str) -> list[str]:
    """Return the names of the folders in a folder."""
    return [name for name, s in _stats_in(root, folder) if stat.S_ISDIR(s.st_mode)]


@dataclass
class Remover:
    """Removes files and empty folders of a cache by their names, and counts the removals."""

    root: Path
    files: int = 0
    bytes: int = 0
    failures: list[str] = field(default_factory=list)

    def file(self, *names: str) -> None:
        """Remove a file. A missing file is no failure."""
        try:
            with open_folder(self.root, *names[:-1]) as folder:
                size = os.stat(names[-1], dir_fd=folder, follow_symlinks=False).st_size
                os.unlink(names[-1], dir_fd=folder)
        except FileNotFoundError:
            return
        except OSError as error:
            self.failures.append(f"{self.root.joinpath(*names)} ({error.strerror})")
            return
        self.files += 1
        self.bytes += size

    def folder_if_empty(self, *names: str) -> None:
        """Remove a folder unless it holds something: then it stays, with that."""
        try:
            with open_folder(self.root, *names[:-1]) as folder:
                os.rmdir(names[-1], dir_fd=folder)
        except OSError:
            pass  # what remains in it was counted where its removal failed, or is the user's


def _stats_in(root: Path, folder: tuple[str, ...]) -> Iterator[tuple[str, os.stat_result]]:
    try:
        with open_folder(root, *folder) as handle:
            for name in sorted(os.listdir(handle)):
                try:
                    yield name, os.stat(name, dir_fd=handle, follow_symlinks=False)
                except FileNotFoundError:
                    continue  # another process removed it
    except OSError:
        return


def _names(folder: Path) -> set[str]:
    return set(os.listdir(folder))


def _check_is_folder(path: Path) -> None:
    """CacheError if another kind of file has the place of a folder."""
    try:
        kind = stat.S_IFMT(os.lstat(path).st_mode)
    except OSError:
        return  # it is made
    if kind != stat.S_IFDIR:
        found = "a symbolic link" if kind == stat.S_IFLNK else KINDS.get(kind, "a file")
        raise CacheError(
            f"{path}: is {found}, and the cache has a directory there; remove it, or {ELSEWHERE}"
        )

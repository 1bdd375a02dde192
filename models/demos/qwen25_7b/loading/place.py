"""Where the cache lies, and whether it can be trusted there."""

import os
import stat
from pathlib import Path
from typing import Optional

from models.common.errors import UserError

NAME = "qwen25-7b-ttnn"
# https://bford.info/cachedir/: backup programs leave out a directory that has it.
TAG_FILE, TAG = "CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55\n"


class CacheError(UserError):
    """A cache that cannot be used, or holds what cannot be used."""


def default_root() -> Path:
    """Where caches belong by the XDG base directory specification: $XDG_CACHE_HOME if it is absolute, else ~/.cache."""
    named = Path(os.environ.get("XDG_CACHE_HOME") or "")
    caches = named if named.is_absolute() else Path(os.path.expanduser("~/.cache"))
    return caches / NAME


def prepared(root: Path) -> Optional[str]:
    """Make the directory where it is missing; None if it can be written, else why not. It may still be read then.

    CacheError: others may write there. What they put there would be run as weights.
    """
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        return f"{error.strerror}"
    check_owner(root)
    try:
        if not (root / TAG_FILE).exists():
            (root / TAG_FILE).write_text(TAG)
        for name in ("tiles", "models", "tmp"):
            (root / name).mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        return f"{error.strerror}"
    return None if os.access(root, os.W_OK) else "no right to write there"


def amount(bytes: int) -> str:
    return f"{bytes / 1e9:.2f} GB" if bytes >= 1e8 else f"{bytes / 1e6:.1f} MB"


def check_owner(root: Path) -> None:
    """CacheError if others may write to it."""
    found = root.stat()
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CacheError(
            f"{root}: others may write there (mode {stat.S_IMODE(found.st_mode):04o}), so its weights could be anybody's: "
            f"chmod go-w {root}, or choose another place with --cache"
        )
    if found.st_uid not in (os.getuid(), 0):
        raise CacheError(
            f"{root}: belongs to user {found.st_uid}, so its weights could be anybody's: choose a place of your own with "
            "--cache"
        )

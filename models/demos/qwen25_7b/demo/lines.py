"""What somebody types, or what a pipe brings, line by line."""

import sys
from contextlib import suppress
from typing import Optional

from models.common.errors import UserError
from models.common.terminal import say

PROMPT = "> "


class Lines:
    """At a terminal lines can be edited and the last ones fetched again; of a pipe they are shown as if typed."""

    def __init__(self):
        if sys.stdin is None or sys.stdin.closed:
            raise UserError("--chat reads from standard input, which is closed")
        # What the locale lacks is kept in surrogates, which `_decoded` takes apart.
        sys.stdin.reconfigure(errors="surrogateescape")
        self.typed = sys.stdin.isatty() and sys.stdout.isatty()
        if self.typed:
            with suppress(ImportError):  # a Python without it: the terminal itself knows backspace
                import readline  # noqa: F401 - input() edits with it from now on

    def read(self) -> Optional[str]:
        """The next line, None behind the last. UserError for one that is no text."""
        if not self.typed:
            line = sys.stdin.readline()
            if not line:
                return None
            text = _decoded(line.removesuffix("\n").removesuffix("\r"))
            say(f"{PROMPT}{text}")
            return text
        try:
            return _decoded(input(PROMPT))
        except EOFError:
            say()
            return None


def _decoded(line: str) -> str:
    try:
        return line.encode(sys.stdin.encoding, "surrogateescape").decode("utf-8")
    except UnicodeError as error:
        raise UserError(f"this line is not UTF-8: {error.reason} at place {error.start}") from error

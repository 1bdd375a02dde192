"""What a command shows: on stdout with `say`, on stderr with `complain`. All that reaches a terminal goes through here."""

import sys
from typing import TextIO

from models.common.errors import UserError

LONGEST = 2000  # characters of an error line: a name or a value in it may be megabytes long


def _written_out(*codes: int) -> dict[int, str]:
    return {code: chr(code).encode("unicode_escape").decode() for code in codes}


# What a terminal obeys instead of showing it (C0, DEL, C1), what turns the order of a line's characters round, other line
# breaks, and halves of characters, which no encoding has.
_CONTROLS = _written_out(
    *range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029, *range(0xD800, 0xE000)
)  # fmt: skip
_CONTROLS_OF_TEXT = {code: name for code, name in _CONTROLS.items() if chr(code) not in "\n\t"}


_mid_line = False  # whether what was said last left the cursor in its line


class OutputError(UserError):
    """stdout does not take what a command has to show."""


def printable(text: str) -> str:
    """The text with its control characters written out, as \\x1b or \\u202e; newlines and tabs stay."""
    return text.translate(_CONTROLS_OF_TEXT)


def one_line(message: str) -> str:
    """The message on one line, without control characters and no longer than a reader can take."""
    line = " ".join(message.splitlines()).translate(_CONTROLS)
    half = LONGEST // 2
    return line if len(line) <= LONGEST else f"{line[:half]} ... {line[-half:]}"


def say(text: str = "", *, end: str = "\n") -> None:
    """Show text on stdout now. OutputError where it cannot be written; BrokenPipeError where nobody reads it any more."""
    global _mid_line
    whole = printable(text + end)
    _mid_line = not whole.endswith("\n") if whole else _mid_line
    try:
        _write(sys.stdout, whole)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"standard output cannot be written: {error.strerror}") from error


def complain(line: str) -> None:
    """Show one line on stderr."""
    try:
        _write(sys.stderr, "\n" * (_mid_line and sys.stdout.isatty()) + one_line(line) + "\n")
    except OSError:
        pass  # there is no place left to say so, and the exit status still tells


def _write(stream: TextIO, text: str) -> None:
    """What the stream's encoding lacks is written out too."""
    encoding = stream.encoding or "utf-8"  # a StringIO has none
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()

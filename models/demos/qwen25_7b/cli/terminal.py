"""Output of a command: `say` on stdout, `complain` on stderr."""

import sys
from contextlib import nullcontext, suppress
from typing import ContextManager

# A model may answer with a terminal's control characters. They are written out, as \x1b.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}

_is_mid_line = False  # whether the last `say` left the cursor inside a line


def printable(text: str) -> str:
    """The text with its control characters written out; newlines and tabs stay."""
    return text.translate(_CONTROLS)


def say(text: str = "", *, end: str = "\n") -> None:
    """Show text on stdout now. Progress bars make room for it."""
    global _is_mid_line
    text = printable(text + end)
    with _without_bars():
        print(text, end="", flush=True)
    _is_mid_line = not text.endswith("\n") if text else _is_mid_line


def complain(line: str) -> None:
    """Show one line on stderr."""
    text = printable(" ".join(line.splitlines()))
    if _is_mid_line and sys.stdout.isatty():
        text = f"\n{text}"
    with suppress(OSError), _without_bars():  # the terminal may be gone
        print(text, file=sys.stderr, flush=True)


def _without_bars() -> ContextManager:
    """A context in which progress bars make room. A Python that lacks tqdm gets its message, too."""
    module = sys.modules.get("tqdm")
    return module.tqdm.external_write_mode() if module else nullcontext()

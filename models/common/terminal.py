"""Output of a command: `say` on stdout, `complain` and `Progress` on stderr. Nothing else writes to a terminal."""

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Optional, TextIO

from models.common.errors import UserError

if TYPE_CHECKING:
    from tqdm import tqdm

LONGEST = 2000  # characters of an error line: a name or a value in it may be megabytes long


def _written_out(*codes: int) -> dict[int, str]:
    return {code: chr(code).encode("unicode_escape").decode() for code in codes}


# Control characters (C0, DEL, C1), characters that change a line's direction, line breaks other than
# "\n", and surrogates.
_CONTROLS = _written_out(
    *range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029, *range(0xD800, 0xE000)
)  # fmt: skip
_CONTROLS_OF_TEXT = {code: name for code, name in _CONTROLS.items() if chr(code) not in "\n\t"}


TICK = 1.0  # seconds between two updates of a progress bar at a terminal
LOG_AFTER = LOG_EVERY = 60.0  # seconds between two lines of progress where stderr is a file

_mid_line = False  # whether the last `say` left the cursor inside a line
_lock = threading.RLock()  # for _running and for what its bars draw
_running: list["Progress"] = []  # the innermost one last: only that one is drawn


class OutputError(UserError):
    """stdout does not take a command's output."""


def printable(text: str) -> str:
    """The text with its control characters written out, as \\x1b or \\u202e; newlines and tabs stay."""
    return text.translate(_CONTROLS_OF_TEXT)


def one_line(message: str) -> str:
    """The message on one line, without control characters and no longer than a reader can take."""
    line = " ".join(message.splitlines()).translate(_CONTROLS)
    half = LONGEST // 2
    return line if len(line) <= LONGEST else f"{line[:half]} ... {line[-half:]}"


def say(text: str = "", *, end: str = "\n") -> None:
    """Show text on stdout now. OutputError: it cannot be written. BrokenPipeError: the reader has left."""
    global _mid_line
    whole = printable(text + end)
    _mid_line = not whole.endswith("\n") if whole else _mid_line
    try:
        with _lock:
            _clear_progress()
            _write(sys.stdout, whole)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"standard output cannot be written: {error.strerror}") from error


def complain(line: str) -> None:
    """Show one line on stderr."""
    try:
        with _lock:
            _clear_progress()
            _write(sys.stderr, "\n" * (_mid_line and sys.stdout.isatty()) + one_line(line) + "\n")
    except OSError:
        pass  # there is no stream left for a message, and the exit status shows the error


def _write(stream: TextIO, text: str) -> None:
    """What the stream's encoding lacks is written out too."""
    encoding = stream.encoding or "utf-8"  # a StringIO has none
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


class Progress:
    """Progress of a `with` block on stderr. It may be called with (done, total) and ends at done = total.

    At a terminal a bar appears after a second. Its clock runs also while the block is inside a library.
    Where stderr is a file, a line appears after LOG_AFTER seconds and then every LOG_EVERY.
    Blocks may be nested: the innermost is drawn. name: the phase. unit: what is counted, for example
    "bytes" or "tokens".
    """

    def __init__(self, name: str, unit: str = ""):
        self.name = name
        self.unit = unit
        self._count: Optional[tuple[int, int]] = None  # done, total
        self._bar: "Optional[tqdm]" = None
        self._over = threading.Event()
        self._began = time.monotonic()

    def __enter__(self) -> "Progress":
        with _lock:
            _clear_progress()
            _running.append(self)
        threading.Thread(target=self._tick, daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Take the bar off the terminal. Later calls show nothing."""
        self._over.set()
        with _lock:
            self._erase()
            if self in _running:
                _running.remove(self)

    def __call__(self, done: int, total: int) -> None:
        with _lock:
            if self._over.is_set():
                return
            if self._count is None:
                self._erase()  # a bar without a count
            self._count = (done, total)
            is_shown = self._bar is not None or self.unit == "bytes"
            if is_shown and sys.stderr.isatty() and self is _running[-1]:
                self._draw()
            if done >= total:
                self.close()

    def _tick(self) -> None:
        at_terminal = sys.stderr.isatty()
        wait = TICK if at_terminal else LOG_AFTER
        while not self._over.wait(wait):
            wait = TICK if at_terminal else LOG_EVERY
            with _lock:
                if self._over.is_set() or self is not _running[-1]:
                    continue
                if at_terminal:
                    self._draw()
                else:
                    complain(
                        f"{self.name}: {self._counted()}{time.monotonic() - self._began:.0f} s"
                    )

    def _counted(self) -> str:
        if self._count is None:
            return ""
        done, total = self._count
        return f"{done} of {total} {self.unit}, "

    def _draw(self) -> None:
        if _mid_line and sys.stdout.isatty():
            return  # an answer is being written in this line
        if self._bar is None:
            self._bar = self._new_bar()
        if self._count is not None:
            self._bar.n = self._count[0]
        self._bar.refresh()

    def _new_bar(self) -> "tqdm":
        from tqdm import tqdm

        # A terminal of 0 x 0 does not know its size; tqdm would show nothing.
        columns, rows = os.get_terminal_size(sys.stderr.fileno())
        options = dict(desc=self.name, leave=False, ncols=columns or 80, nrows=rows or 24)
        if self._count is None or self._count[0] >= self._count[1]:
            options |= dict(bar_format="{desc} [{elapsed}]")
        elif self.unit == "bytes":
            options |= dict(total=self._count[1], unit="B", unit_scale=True)
        else:
            # Without a rate: tokens that the cache holds already count at once.
            form = "{l_bar}{bar}| {n_fmt}/{total_fmt} {unit} [{elapsed}]"
            options |= dict(total=self._count[1], unit=self.unit, bar_format=form)
        bar = tqdm(**options, delay=1e-9)  # the delay keeps tqdm from drawing before start_t is set
        bar.start_t -= time.monotonic() - self._began
        return bar

    def _erase(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _clear_progress() -> None:
    if _running:
        _running[-1]._erase()

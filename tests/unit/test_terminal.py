"""Control sequences that a terminal would obey are not printed."""

import io
import os
import pty
import re
import subprocess
import sys
import unicodedata
from contextlib import suppress
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from models.common.terminal import LONGEST, complain, one_line, printable, say

REPOSITORY = Path(__file__).resolve().parents[2]
BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
everything = st.text(st.characters(codec=None, exclude_categories=()))


@given(everything)
def test_no_control_character_is_left_and_nothing_else_changes(text):
    shown = printable(text)
    assert not [
        c
        for c in shown
        if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") and c not in "\n\t" or c in BIDI
    ]
    harmless = "".join(
        c for c in text if unicodedata.category(c) not in ("Cc", "Cs", "Zl", "Zp") and c not in BIDI
    )
    assert printable(harmless) == harmless


@given(everything)
def test_a_line_has_no_line_breaks(text):
    line = one_line(text)
    assert len(line.splitlines()) <= 1 and "\t" not in line


def test_control_characters_are_escaped():
    assert printable("\x1b[2J\a\x9b\x7f\u202e\n\t é😀") == "\\x1b[2J\\x07\\x9b\\x7f\\u202e\n\t é😀"


def test_a_long_line_keeps_its_beginning_and_its_end():
    line = one_line("begin" + "x" * 50_000_000 + "end")
    assert len(line) < LONGEST + 10 and line.startswith("begin") and line.endswith("end")


def test_messages_are_printable_and_shown_at_once(monkeypatch):
    shown = []

    class Screen(io.StringIO):
        def flush(self):
            shown.append(self.getvalue())

    monkeypatch.setattr(sys, "stdout", Screen())
    say("\x1b[2Ja\tb\n\u202ec", end="\r\n")
    assert shown == ["\\x1b[2Ja\tb\n\\u202ec\\r\n"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_an_error_after_half_an_answer_starts_a_new_line(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    say("The capital", end="")
    say("", end="")
    complain("error: a")
    say("b")
    complain("error: c")
    assert screen.getvalue() == "The capital\nerror: a\nb\nerror: c\n"


PROGRESS = """
import sys, time
from models.common import terminal
terminal.TICK = terminal.LOG_AFTER = terminal.LOG_EVERY = 0.2
with terminal.Progress("opening"):
    time.sleep(1.5)
    terminal.say("a line")
    with terminal.Progress("prompts", "tokens") as progress:
        progress(0, 40)
        progress(39, 40)
        time.sleep(0.5)
terminal.say("answer")
"""


def run_progress(**streams) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", PROGRESS], cwd=REPOSITORY, **streams)


def test_progress_at_a_terminal_ticks_without_calls_and_leaves_nothing_behind():
    screen, terminal = pty.openpty()
    process = run_progress(stdout=terminal, stderr=terminal)
    os.close(terminal)
    shown = b""
    with suppress(OSError):  # Linux raises it when no program has the terminal any more
        while more := os.read(screen, 4096):
            shown += more
    assert process.wait() == 0
    assert b"opening [00:01]" in shown and b"39/40 tokens" in shown
    assert b"tokens/s" not in shown, "what the cache holds already is no speed"
    lines = [line.split(b"\r")[-1].strip() for line in shown.replace(b"\r\n", b"\n").split(b"\n")]
    assert lines == [b"a line", b"answer", b""]


def test_progress_in_a_file_is_a_line_now_and_then():
    process = run_progress(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate(timeout=60)
    assert out == "a line\nanswer\n"
    assert re.fullmatch(r"(opening: \d+ s\n)+(prompts: 39 of 40 tokens, \d+ s\n)+", err), err

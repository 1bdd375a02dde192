"""Nothing that a terminal would obey instead of showing it gets through."""

import io
import sys
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from models.common.terminal import LONGEST, complain, one_line, printable, say

BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
everything = st.text(st.characters(codec=None, exclude_categories=()))


@given(everything)
def test_no_control_character_is_left_and_nothing_else_changes(text):
    shown = printable(text)
    assert not [
        c for c in shown if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") and c not in "\n\t" or c in BIDI
    ]
    harmless = "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cs", "Zl", "Zp") and c not in BIDI)
    assert printable(harmless) == harmless


@given(everything)
def test_a_line_is_one_line(text):
    line = one_line(text)
    assert len(line.splitlines()) <= 1 and "\t" not in line


def test_control_characters_are_written_out():
    assert printable("\x1b[2J\a\x9b\x7f\u202e\n\t é😀") == "\\x1b[2J\\x07\\x9b\\x7f\\u202e\n\t é😀"


def test_a_long_line_keeps_its_beginning_and_its_end():
    line = one_line("begin" + "x" * 50_000_000 + "end")
    assert len(line) < LONGEST + 10 and line.startswith("begin") and line.endswith("end")


def test_what_is_said_is_printable_and_shown_at_once(monkeypatch):
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


def test_an_error_begins_a_line_of_its_own_after_half_an_answer(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    say("The capital", end="")
    say("", end="")
    complain("error: a")
    say("b")
    complain("error: c")
    assert screen.getvalue() == "The capital\nerror: a\nb\nerror: c\n"

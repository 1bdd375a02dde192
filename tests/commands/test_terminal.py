"""What a command shows: without a terminal's control characters, at once, each message on a line."""

import io
import sys

from models.demos.qwen25_7b.cli.terminal import complain, printable, say


def test_control_characters_are_written_out():
    assert printable("\x1b[2J\a\x9b\x7f\r\n\t é😀") == "\\x1b[2J\\x07\\x9b\\x7f\\x0d\n\t é😀"


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

"""The chat at a terminal, and through a pipe with a context that fills up."""

import re
import subprocess
import time

from programs import run_python
from test_at_a_terminal import DEMO, Terminal, bare

CHAT = (DEMO, "--backend", "golden", "--chat")


def test_chat_at_a_terminal(tmp_path):
    """Lines can be edited and recalled. Ctrl-C stops an answer or drops a line, not the chat."""
    terminal = Terminal(tmp_path, *CHAT, "--mesh", "N150")
    terminal.expect(b"Ctrl-C stops an answer")
    terminal.expect(b"> ")
    terminal.press(b"What is the capitol\x7f\x7fal of France?\r")  # backspace twice
    terminal.expect(b"The capital of France is Paris.")
    terminal.expect(b"> ")
    terminal.press(b"Count from 3 to 30.\r")
    terminal.expect(b"3, 4")
    terminal.press(b"\x03")
    assert b"30" not in terminal.expect(b"(stopped)")
    terminal.expect(b"> ")
    terminal.press(b"half a li")
    terminal.expect(b"half a li")
    time.sleep(0.5)  # Python's input() misses a signal that arrives just before it begins to wait
    terminal.press(b"\x03")
    terminal.expect(b"/exit or Ctrl-D leaves")
    terminal.expect(b"> ")
    terminal.press(b"\x1b[A\x1b[A\r")  # arrow up twice: the line before the last
    terminal.expect(b"The capital of France is Paris.")
    terminal.expect(b"> ")
    terminal.press(b"\x04")
    assert "interrupted" not in terminal.rest().decode() and terminal.process.returncode == 0


def piped(place, lines: bytes, *options: str) -> subprocess.CompletedProcess:
    return run_python(*CHAT, "--mesh", "N150", *options, cwd=place, env=bare(place), input=lines, text=False)


def test_a_piped_chat_whose_context_fills_up(tmp_path):
    """A conversation runs until its context is full. A question that does not fit, or is no UTF-8, is refused.

    /reset begins a new conversation, and a stop string ends an answer.
    """
    lines = b"Count from 3 to 30.\nWhat is 2 + 2?\n/reset\nbad \xff\nWhat is the capital of France?\n/exit\nunread\n"
    done = piped(tmp_path, lines, "--max-seq-len", "64", "--stop", "Par")
    out, err = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == 0 and re.fullmatch("cache: .* written to .*\n", err)
    turns = re.split(r"^> ", out, flags=re.MULTILINE)[1:]
    assert [turn.splitlines()[0] for turn in turns] == [
        "Count from 3 to 30.", "What is 2 + 2?", "/reset", "bad \\udcff", "What is the capital of France?", "/exit",
    ]  # fmt: skip
    assert turns[0].splitlines()[1].startswith("3, 4, 5") and "the context of 64 tokens is full" in turns[0]
    assert "not taken" in turns[1] and "/reset" in turns[1] and "up to 4096" in turns[1]
    assert "no text" in turns[3] and "not taken" in turns[3]
    assert turns[4].splitlines()[1] == "The capital of France is "

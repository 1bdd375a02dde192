"""The demo and its chat at a terminal, and a chat through a pipe whose context fills up."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from programs import run_python

from tests.demo.test_demo import DEMO, bare

PATIENCE = 120  # longest wait in seconds for output, even on a busy machine


class Terminal:
    """A program with its own terminal, to which nothing else is attached."""

    def __init__(self, place: Path, *command: str):
        self.screen, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=place, env=bare(place, TMPDIR=f"{place}", TERM="xterm"),
            stdin=terminal, stdout=terminal, stderr=terminal,
            start_new_session=True, preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # to control it
        )  # fmt: skip
        os.close(terminal)
        self.shown, self.seen = b"", 0

    def expect(self, expected: bytes) -> bytes:
        """Return the output since the last expected one, up to the end of this one."""
        while expected not in self.shown[self.seen :] and (more := self.read()):
            self.shown += more
        assert expected in self.shown[self.seen :], self.shown.decode()
        begin, self.seen = self.seen, self.shown.index(expected, self.seen) + len(expected)
        return self.shown[begin : self.seen]

    def press(self, key: bytes) -> None:
        os.write(self.screen, key)

    def rest(self) -> bytes:
        """Return the output from here to the program's end."""
        begin = len(self.shown)
        while more := self.read():
            self.shown += more
        self.process.wait(timeout=60)
        return self.shown[begin:]

    def read(self) -> bytes:
        waiting, _, _ = select.select([self.screen], [], [], PATIENCE)
        assert waiting, f"nothing more was shown after {self.shown!r}"
        try:
            return os.read(self.screen, 1 << 16)
        except OSError:  # Linux raises it when no program has the terminal any more
            return b""


def test_at_a_terminal_there_is_progress_and_ctrl_c_is_one_line(tmp_path):
    terminal = Terminal(tmp_path, DEMO, "--backend", "golden", "--prompt", "Count from 3 to 30.")
    terminal.expect(b"> Count")
    assert b"opening N300" in terminal.shown
    assert re.search(rb"layers: .*? \d+/\d+ \[", terminal.shown), terminal.shown
    terminal.expect(b"3, 4")
    terminal.press(b"\x03")
    last = terminal.rest().decode().splitlines()
    assert terminal.process.returncode == 130 and last[-1] == "interrupted" and len(last) <= 2, last
    assert not [left for left in os.listdir(tmp_path) if left.startswith("golden-mesh")]


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


def test_a_piped_chat_whose_context_fills_up(tmp_path):
    """A conversation runs until its context is full. A question that does not fit, or is no UTF-8, is refused.

    /reset begins a new conversation, and a stop string ends an answer.
    """
    lines = b"Count from 3 to 30.\nWhat is 2 + 2?\n/reset\nbad \xff\nWhat is the capital of France?\n/exit\nunread\n"
    options = "--mesh", "N150", "--max-seq-len", "64", "--stop", "Par"
    environment = bare(tmp_path, TMPDIR=f"{tmp_path}")
    done = run_python(*CHAT, *options, cwd=tmp_path, env=environment, input=lines, text=False)
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

"""The chat as a new user has it: at a terminal, through a pipe, with a context that fills up."""

import re
import subprocess
import sys

import pytest
from test_at_a_terminal import DEMO, Terminal, bare

CHAT = (DEMO, "--backend", "golden", "--chat")


def test_at_a_terminal(tmp_path):
    """Lines are edited and fetched again; Ctrl-C stops an answer, or drops a line, and the chat goes on."""
    terminal = Terminal(tmp_path, *CHAT, "--mesh", "N150")
    seen = 0

    def expect(wanted: str) -> str:
        """What is shown from here up to it."""
        nonlocal seen
        while wanted.encode() not in terminal.shown[seen:]:
            more = terminal._read()
            assert more, terminal.shown.decode()
            terminal.shown += more
        begin, seen = seen, terminal.shown.index(wanted.encode(), seen) + len(wanted)
        return terminal.shown[begin:seen].decode()

    expect("Ctrl-C stops an answer")
    expect("> ")
    terminal.press(b"What is the capitol\x7f\x7fal of France?\r")  # backspace twice
    expect("The capital of France is Paris.")
    expect("> ")
    terminal.press(b"Count from 3 to 30.\r")
    expect("3, 4")
    terminal.press(b"\x03")
    assert "30" not in expect("(stopped)")
    expect("> ")
    terminal.press(b"half a li\x03")
    expect("/exit or Ctrl-D leaves")
    expect("> ")
    terminal.press(b"\x1b[A\x1b[A\r")  # arrow up, twice: the line before the last
    expect("The capital of France is Paris.")
    expect("> ")
    terminal.press(b"\x04")
    assert "interrupted" not in terminal.rest().decode() and terminal.process.returncode == 0


def piped(place, lines: bytes, *options: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *CHAT, "--mesh", "N150", *options],
        cwd=place, env=bare(place), input=lines, capture_output=True, timeout=240,
    )  # fmt: skip


def test_a_pipe_with_a_context_that_fills_up(tmp_path):
    """One conversation until it is full; what does not fit is not taken, /reset goes on, a stop string ends an answer."""
    lines = b"Count from 3 to 30.\nWhat is 2 + 3?\n\xff\n/reset\nWhat is the capital of France?\n/exit\nunread\n"
    done = piped(tmp_path, lines, "--max-seq-len", "64", "--stop", "Par")
    out, err = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == 0 and err.count("\n") == 1 and "not UTF-8" in err, err
    said = re.split(r"^> ", out, flags=re.MULTILINE)[1:]
    assert [turn.splitlines()[0] for turn in said] == [
        "Count from 3 to 30.", "What is 2 + 3?", "/reset", "What is the capital of France?", "/exit",
    ]  # fmt: skip
    assert said[0].splitlines()[1].startswith("3, 4, 5") and "the context of 64 tokens is full" in said[0]
    assert "not taken" in said[1] and "/reset" in said[1] and "up to 4096" in said[1]
    assert said[3].splitlines()[1] == "The capital of France is "


@pytest.mark.parametrize(
    "options, words",
    [
        (["--no-instruct"], "--chat needs the chat template"),
        (["--batch-size", "2"], "--batch-size"),
        (["--prompt", "Hi"], "not allowed with"),
        (["--max-new-tokens", "0"], "max_new_tokens"),
        (["--stop", ""], "stop must be"),
    ],
)
def test_what_a_chat_cannot_be(options, words, capsys):
    from models.demos.qwen25_7b.demo import demo

    assert demo.main([*CHAT[1:], *options]) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1

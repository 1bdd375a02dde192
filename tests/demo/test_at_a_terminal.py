"""The demo at a terminal."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO = f"{REPOSITORY}/models/demos/qwen25_7b/demo/demo.py"
PATIENCE = 120  # longest wait in seconds for output, even on a busy machine


def bare(place: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": f"{place}", "TMPDIR": f"{place}", "OMP_NUM_THREADS": "1", **more}


class Terminal:
    """A program with its own terminal, to which nothing else is attached."""

    def __init__(self, place: Path, *command: str):
        self.screen, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=place, env=bare(place, TERM="xterm"), stdin=terminal, stdout=terminal, stderr=terminal,
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

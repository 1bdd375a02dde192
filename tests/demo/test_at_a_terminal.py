"""The demo at a terminal, in a pipe and in a poor locale. Each slow run checks several things."""

import math
import os
import pty
import re
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO = f"{REPOSITORY}/models/demos/qwen25_7b/demo/demo.py"
PATIENCE = 120  # longest wait in seconds for output, even on a busy machine


def bare(place: Path, **more: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": f"{place}",
        "TMPDIR": f"{place}",
        "OMP_NUM_THREADS": "1",
        **more,
    }


class Terminal:
    """A program with its own terminal, to which nothing else is attached."""

    def __init__(self, place: Path, *command: str):
        self.screen, terminal = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=place, env=bare(place, TERM="xterm"), stdin=terminal, stdout=terminal, stderr=terminal,
            start_new_session=True, preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # to control it
        )  # fmt: skip
        os.close(terminal)
        self.shown = b""

    def read_until(self, expected: bytes) -> None:
        while expected not in self.shown and (more := self._read()):
            self.shown += more
        assert expected in self.shown, self.shown.decode()

    def press(self, key: bytes) -> None:
        os.write(self.screen, key)

    def rest(self) -> bytes:
        """Return the output from here to the program's end."""
        begin = len(self.shown)
        while more := self._read():
            self.shown += more
        self.process.wait(timeout=60)
        return self.shown[begin:]

    def _read(self) -> bytes:
        waiting, _, _ = select.select([self.screen], [], [], PATIENCE)
        assert waiting, f"nothing more was shown after {self.shown!r}"
        try:
            return os.read(self.screen, 1 << 16)
        except OSError:  # Linux raises it when no program has the terminal any more
            return b""


def test_at_a_terminal_there_is_progress_and_ctrl_c_is_one_line(tmp_path):
    terminal = Terminal(tmp_path, DEMO, "--backend", "golden", "--prompt", "Count from 3 to 30.")
    terminal.read_until(b"> Count")
    # placed bytes, total bytes, remaining time
    progress = re.findall(
        rb"weights: .*? ([\d.]+M)/([\d.]+M) \[[\d:]+<[\d:]+, [\d.]+MB/s", terminal.shown
    )
    assert progress and progress[-1][0] == progress[-1][1], terminal.shown
    terminal.read_until(b"3, 4")
    terminal.press(b"\x03")
    last = terminal.rest().decode().splitlines()
    assert terminal.process.returncode == 130 and last[-1] == "interrupted" and len(last) <= 2, last
    assert not [left for left in os.listdir(tmp_path) if left.startswith("golden-mesh")]


def test_a_closed_pipe(tmp_path):
    demo = [sys.executable, DEMO, "--backend", "golden"]
    process = subprocess.Popen(demo, cwd=tmp_path, env=bare(tmp_path), stdout=-1, stderr=-1)
    assert process.stdout.readline().startswith(b"model:")
    process.stdout.close()
    assert (process.wait(timeout=120), process.stderr.read()) == (141, b"")


def test_an_ascii_locale_and_a_prompt_with_terminal_escapes(tmp_path):
    """The prompt's bytes are UTF-8, which Python does not know in this locale."""
    poor = dict(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="ascii")
    prompt = os.fsencode("Grüße \x1b[2J\x9b31m\u202e. What is the capital of France?")
    demo = [
        sys.executable,
        DEMO,
        "--backend",
        "golden",
        "--max-new-tokens",
        "8",
        "--prompt",
        prompt,
    ]
    done = subprocess.run(
        demo, cwd=tmp_path, env=bare(tmp_path, **poor), capture_output=True, timeout=240
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"> Gr\\xfc\\xdfe \\x1b[2J\\x9b31m\\u202e. What" in done.stdout
    assert not re.search(rb"[^\n\x20-\x7e]", done.stdout), done.stdout


def test_a_weight_that_is_not_a_number(tmp_path):
    name = "model.layers.2.mlp.up_proj.weight"
    model = Path(shutil.copytree(SMALL_CHECKPOINT, tmp_path / "model"))
    tensors = load_file(model / "model.safetensors")
    tensors[name][7, 11] = math.nan
    save_file(tensors, model / "model.safetensors")
    demo = [sys.executable, DEMO, "--backend", "golden", "--model", f"{model}"]
    done = subprocess.run(
        demo, cwd=tmp_path, env=bare(tmp_path), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    assert f"{name}[7, 11] is nan" in done.stderr


COMMANDS = {
    "data parallel": [
        f"{REPOSITORY}/models/demos/qwen25_7b/demo/data_parallel.py",
        "--backend",
        "golden",
    ],
    "splits": ["-m", "models.demos.qwen25_7b.perf", "splits"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_shows_its_own_modules_only(tmp_path, command):
    environment = bare(tmp_path, PYTHONPATH=f"{REPOSITORY}")
    done = subprocess.run(
        [sys.executable, *COMMANDS[command]],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        "Config{" not in done.stdout
        and "DEBUG" not in done.stdout
        and "nanobind" not in done.stdout
    )

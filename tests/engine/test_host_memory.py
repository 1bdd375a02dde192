"""A model that the host cannot hold is refused in one line, before a weight is packed. The limit is a real one."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
EVAL = "-m", "qwen25_7b_lab.evaluation", "eval", "--recipes", "bfp8"


@pytest.mark.parametrize("words", [("models/demos/qwen25_7b/demo/demo.py", "--no-cache"), EVAL], ids=["demo", "eval"])
def test_less_memory_than_the_chips_take_is_one_line(words):
    command = ["bash", "-c", 'ulimit -v 4400000; exec "$@"', "limited", sys.executable, *words]
    done = subprocess.run([*command, "--backend", "golden"], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: N300") and "recipe bfp8" in line and "4.5 GB are the limit of `ulimit -v`" in line

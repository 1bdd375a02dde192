"""Steps and transfers on two command queues wait for each other, whatever the order in which the queues run."""

from pathlib import Path

import pytest
from programs import run_python

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.make_test_on("N300")
def test_no_step_races_a_transfer(tmp_path):
    """The golden mesh runs each queue as late as the program's events allow, and names two calls that race."""
    options = "--mesh N150 --backend golden --no-cache --max-new-tokens 12".split()
    words = "golden_mesh", "--system", "N150", "--adversarial", "1", ROOT / "models/demos/qwen25_7b/demo/demo.py"
    done = run_python("-m", *words, *options, cwd=tmp_path)
    assert done.returncode == 0 and "The capital of France is Paris." in done.stdout, done.stderr[-2000:]

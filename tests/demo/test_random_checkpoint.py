"""Two layers of the 7B's dims, as lab/random_checkpoint.py writes them, through the demo."""

from pathlib import Path

import pytest
from programs import run_python

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO = REPOSITORY / "models/demos/qwen25_7b/demo/demo.py"


@pytest.mark.seven_b
@pytest.mark.make_test_on("N300")
def test_a_checkpoint_of_the_7bs_dims_gives_text(tmp_path):
    for words in (
        (REPOSITORY / "lab/random_checkpoint.py", tmp_path / "random", 2),
        (DEMO, "--backend", "golden", "--model", tmp_path / "random", "--cache", tmp_path, "--max-new-tokens", "2"),
    ):
        done = run_python(*words, cwd=tmp_path, timeout=900)
        assert done.returncode == 0, done.stderr[-2000:]
    assert "cut after 2 tokens" in done.stdout

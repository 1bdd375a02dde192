"""Two layers of the 7B's dims through the demo and `eval`, as a checkpoint that is read a layer at a time."""

import json
from pathlib import Path

import pytest
import torch
from programs import run_python

from tests.accuracy.reference_file import Reference

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO = REPOSITORY / "models/demos/qwen25_7b/demo/demo.py"
FEW = "--backend golden --mesh N300 --texts 2 --prompt-tokens 32 --steps 4".split()


@pytest.mark.seven_b
def test_demo_and_eval_of_a_checkpoint_of_the_7bs_dims(tmp_path):
    """Hugging Face judges: a chip's weights have 8 bits, so KL is small, and would be 10 for another text or place."""
    model = tmp_path / "random"

    def run(*words):
        done = run_python(*words, cwd=tmp_path, timeout=900)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    run(REPOSITORY / "lab/random_checkpoint.py", model, 2)
    cache = "--cache", tmp_path, "--max-new-tokens", "2"
    assert "cut after 2 tokens" in run(DEMO, "--backend", "golden", "--mesh", "N300", "--model", model, *cache)
    command = "-m", "qwen25_7b_lab.evaluation", "eval", *FEW, "--model", model
    output = run(*command)
    assert "about" in output and "tt_transformers publishes" in output and "511 tokens after 512" in output
    written = json.loads((tmp_path / "generated/evaluation/random-N300-tp2-decode.json").read_text())["results"]
    assert [result["tokens"] for result in written] == [8, 511]
    assert all(result["kl_mean"] < 0.1 and result["top5"] > 0.95 for result in written)
    file = tmp_path / "generated/evaluation/random-reading.refpt"
    reference = Reference.load(file, 152064)
    assert len(reference.tokens) == 1024 and torch.load(file)["entries"][0]["topk_tokens"].shape == (512, 100)
    assert "about 1 minutes" in run(*command), "everything is known"

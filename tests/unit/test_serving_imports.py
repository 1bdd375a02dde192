"""Modules loaded in vLLM's process do not import transformers. vLLM needs another version of it."""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
WITHOUT_TRANSFORMERS = """
import sys
sys.modules["transformers"] = sys.modules["tokenizers"] = None
import golden_mesh
golden_mesh.activate("N150")
import models.demos.qwen25_7b.serving.generator_vllm
"""


def test_the_class_for_vllm_imports_no_transformers():
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "PYTHONPATH": f"{REPOSITORY}",
    }
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TRANSFORMERS],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr

"""Modules loaded in vLLM's process do not import transformers. vLLM needs another version of it.

The folder of extra models works where it is, and as a copy.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from programs import run_python

REPOSITORY = Path(__file__).resolve().parents[2]
WITHOUT_TRANSFORMERS = """
import sys
sys.modules["transformers"] = sys.modules["tokenizers"] = None
import golden_mesh
golden_mesh.activate("N150")
import models.demos.qwen25_7b.vllm.generator_vllm
"""


EXTRA_MODELS = REPOSITORY / "models/demos/qwen25_7b/vllm/extra_models/qwen25_7b"
FOUND = "import golden_mesh; golden_mesh.activate('N150')"
ABSENT = "sys.modules['models'] = None"


ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "PYTHONPATH": f"{REPOSITORY}"}


def test_the_class_for_vllm_imports_no_transformers():
    command = [sys.executable, "-c", WITHOUT_TRANSFORMERS]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("before, error", [
    (FOUND, ""), (ABSENT, "put the root of its repository first on PYTHONPATH"),
], ids=["found", "absent"])  # fmt: skip
def test_a_copy_of_the_extra_models_finds_the_package_or_says_what_to_do(tmp_path, before, error):
    folder = shutil.copytree(EXTRA_MODELS, tmp_path / "extra")
    program = f"import sys; {before}; sys.path.append('{folder}'); import qwen25_7b_for_vllm"
    done = run_python("-c", program, env=ENVIRONMENT)
    assert (done.returncode != 0) == bool(error) and error in done.stderr, done.stderr

"""Modules loaded in vLLM's process do not import transformers. vLLM needs another version of it.

The folder of extra models works where it is, and as a copy.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


EXTRA_MODELS = REPOSITORY / "models/demos/qwen25_7b/serving/extra_models/qwen25_7b"
FOUND = "import golden_mesh; golden_mesh.activate('N150')"
ABSENT = "sys.modules['models'] = None"


@pytest.mark.parametrize("before", [FOUND, ABSENT], ids=["found", "absent"])
def test_a_copy_of_the_extra_models_finds_the_package_or_says_what_to_do(tmp_path, before):
    folder = shutil.copytree(EXTRA_MODELS, tmp_path / "extra")
    program = f"import sys; {before}; sys.path.append({str(folder)!r}); import qwen25_7b_for_vllm"
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": f"{REPOSITORY}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if before == FOUND:
        assert done.returncode == 0, done.stderr
    else:
        last = done.stderr.strip().splitlines()[-1]
        assert "put the root of its repository first on PYTHONPATH" in last, done.stderr

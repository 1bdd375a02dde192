"""The model's folder runs in a tree of other `models` packages, such as tt-metal's, with nothing else of this
repository.

Modules loaded in vLLM's process do not import transformers: vLLM needs another version of it.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from programs import run_python

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = "models/demos/qwen25_7b"
THEIRS = ["models/common/rmsnorm.py", "models/tt_transformers/generator.py", "models/demos/other.py"]
IMPORT_BOTH = (
    f"import {FOLDER.replace('/', '.')}.config as ours; import models.common.rmsnorm, models.demos.other; "
    "from models.tt_transformers import generator; print(ours.__file__)"
)


def make_tree(tree: Path) -> Path:
    """Files of another project, without __init__.py, as in tt-metal."""
    for name in THEIRS:
        file = tree / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return tree


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Another project with a copy of the model's folder."""
    tree = make_tree(tmp_path_factory.mktemp("tree"))
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / FOLDER, tree / FOLDER, ignore=ignored)
    return tree


def python(*arguments: str, cwd: Path, path: list[Path]) -> str:
    """Run Python without this repository, which may be installed. Returns the output."""
    places = [*path, REPOSITORY / "golden_mesh/src", sysconfig.get_path("purelib")]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": f"{cwd}",
        "TMPDIR": f"{cwd}",
        "PYTHONPATH": os.pathsep.join(map(str, places)),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-S", *arguments]  # -S: no editable installs
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "way", ["a copy", "a copy beside packages with __init__.py", "installed first", "installed last"]
)
def test_ours_and_the_other_packages_are_importable(tree, tmp_path, way):
    """An installed repository hides no other models package."""
    if "installed" in way:
        path = [REPOSITORY, make_tree(tmp_path / "theirs")][:: 1 if "first" in way else -1]
        assert python("-c", IMPORT_BOTH, cwd=tmp_path, path=path).startswith(f"{REPOSITORY}/")
        return
    if "beside" in way:
        tree = Path(shutil.copytree(tree, tmp_path / "packages"))
        for name in ["models/__init__.py", *(Path(file).parent / "__init__.py" for file in THEIRS)]:
            (tree / name).touch()
    assert python("-c", IMPORT_BOTH, cwd=tree, path=[tree]).startswith(f"{tree}/")


def test_a_pcc_test_passes_in_another_tree(tree):
    for name in ("conftest.py", *(f"tests/{n}.py" for n in ("conftest", "families", "metrics"))):
        (tree / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / name, tree / name)
    shutil.copytree(REPOSITORY / "tests/pcc", tree / "tests/pcc")
    shutil.copytree(REPOSITORY / "lab", tree / "lab")  # references in a recipe's formats
    pytest_options = ["-q", "-p", "no:cacheprovider", "--rootdir", f"{tree}"]
    options = ["--backend", "golden", "--mesh", "N300", "--size", "tiny"]
    command = ["-m", "pytest", *pytest_options, *options, "tests/pcc/test_rms_norm.py"]
    out = python(*command, cwd=tree, path=[tree, tree / "lab"])
    assert re.search(r"^[1-9]\d* passed", out, re.MULTILINE), out


def test_the_demo_answers_from_a_wheel_in_another_folder(tmp_path):
    """With all that the folder holds but its documents: checkpoint, questions, vLLM's extra models."""
    source, installed = tmp_path / "source", tmp_path / "installed"
    for name in ("models", "lab"):
        shutil.copytree(REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = "--no-deps", "--no-build-isolation", "--wheel-dir", f"{tmp_path}", f"{source}"
    subprocess.run([*pip, "wheel", *build], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    shutil.unpack_archive(wheel, installed, "zip")
    ours = {
        file.relative_to(source)
        for file in (source / FOLDER).rglob("*")
        if file.is_file() and file.suffix not in (".md", ".svg")
    }
    assert ours == {file.relative_to(installed) for file in (installed / FOLDER).rglob("*") if file.is_file()}
    assert {file.name for file in installed.iterdir()} - {"models", "qwen25_7b_lab"} == {
        f"{wheel.name.partition('-py3')[0]}.dist-info"
    }
    out = python("-m", "qwen25_7b_lab.perf", "splits", cwd=tmp_path, path=[installed])
    assert "T3K" in out, out
    module, options = f"{FOLDER.replace('/', '.')}.demo.demo", ["--backend", "golden", "--no-cache"]
    out = python("-m", module, *options, "--prompt", "What is the capital of France?", cwd=tmp_path, path=[installed])
    assert "The capital of France is Paris" in out, out


WITHOUT_TRANSFORMERS = """
import sys
sys.modules["transformers"] = sys.modules["tokenizers"] = None
import golden_mesh
golden_mesh.activate("N150")
import models.demos.qwen25_7b.vllm.generator_vllm
"""


EXTRA_MODELS = REPOSITORY / FOLDER / "vllm/extra_models/qwen25_7b"
FOUND = "import golden_mesh; golden_mesh.activate('N150')"
ABSENT = "sys.modules['models'] = None"


def test_the_class_for_vllm_imports_no_transformers(tmp_path):
    python("-c", WITHOUT_TRANSFORMERS, cwd=tmp_path, path=[REPOSITORY])


@pytest.mark.parametrize("before, error", [
    (FOUND, ""), (ABSENT, "put the root of its repository first on PYTHONPATH"),
], ids=["found", "absent"])  # fmt: skip
def test_a_copy_of_the_extra_models_finds_the_package_or_says_what_to_do(tmp_path, before, error):
    folder = shutil.copytree(EXTRA_MODELS, tmp_path / "extra")
    program = f"import sys; {before}; sys.path.append('{folder}'); import qwen25_7b_for_vllm"
    environment = {"PATH": os.environ["PATH"], "HOME": f"{tmp_path}", "PYTHONPATH": f"{REPOSITORY}"}
    done = run_python("-c", program, env=environment)
    assert (done.returncode != 0) == bool(error) and error in done.stderr, done.stderr

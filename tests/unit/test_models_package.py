"""Another `models` package on PYTHONPATH, such as tt-metal's, stays importable beside this one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO = REPOSITORY / "models/demos/qwen25_7b/demo/demo.py"
IMPORT_BOTH = (
    "import models.demos.qwen25_7b.config, models.common.terminal; "
    "from models import theirs; from models.common import theirs_too; from models.demos import theirs_as_well"
)


@pytest.fixture
def theirs(tmp_path):
    """A `models` package of another project, without __init__.py files, as in tt-metal."""
    for file in (
        "theirs.py",
        "common/theirs_too.py",
        "common/errors.py",
        "demos/theirs_as_well.py",
    ):
        path = tmp_path / "other/models" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return tmp_path / "other"


def python(*arguments: str, path: list[Path], cwd: Path) -> subprocess.CompletedProcess:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": f"{cwd}",
        "PYTHONPATH": os.pathsep.join(map(str, path)),
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("first", ["theirs", "ours"])
def test_both_are_importable(theirs, tmp_path, first):
    path = [theirs, REPOSITORY] if first == "theirs" else [REPOSITORY, theirs]
    done = python("-c", IMPORT_BOTH, path=path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("regular", [False, True], ids=["without __init__.py", "with __init__.py"])
def test_the_demo_imports_its_own_package(theirs, tmp_path, regular):
    """A script puts its own repository first, whatever the other package is."""
    for package in ("models", "models/common", "models/demos") if regular else ():
        (theirs / package / "__init__.py").write_text("")
    done = python(f"{DEMO}", "--help", path=[theirs], cwd=tmp_path)
    assert done.returncode == 0 and "--mesh" in done.stdout, done.stderr


def test_a_module_imports_this_project_beside_another_models_package(theirs, tmp_path):
    for package in ("models", "models/common", "models/demos"):
        (theirs / package / "__init__.py").write_text("")
    done = python(
        "-m", "models.demos.qwen25_7b.perf", "--help", path=[REPOSITORY, theirs], cwd=tmp_path
    )
    assert done.returncode == 0 and "splits" in done.stdout, done.stderr
    done = python("-c", IMPORT_BOTH, path=[REPOSITORY, theirs], cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_only_commands_and_the_golden_backend_import_the_golden_mesh():
    """The model, its plans and the server run on cards where golden_mesh is not installed."""
    model = REPOSITORY / "models/demos/qwen25_7b"
    studies = [model / f"evaluation/attention_{name}.py" for name in ("arithmetic", "error")]
    allowed = (model / "perf", model / "quantize", REPOSITORY / "models/common/mesh.py", *studies)
    importing = [
        path
        for path in (REPOSITORY / "models").rglob("*.py")
        if re.search(r"^\s*(from|import) golden_mesh\b", path.read_text(), re.MULTILINE)
    ]
    assert importing and [p for p in importing if not any(map(p.is_relative_to, allowed))] == []

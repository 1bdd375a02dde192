"""nanobind's list of leaked objects does not appear at exit. All else on stderr does, and the exit status stays."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# A reference too many keeps an object of ttnn for good.
HOLDS = """
import ctypes, sys, ttnn
ctypes.pythonapi.Py_IncRef(ctypes.py_object(ttnn.CoreCoord(1, 2)))
"""


def run(*words, place) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *words],
        cwd=place, env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def test_a_program_that_holds_objects_ends_with_its_own_stderr_and_status(tmp_path):
    ending = "print('nanobind: my own line', file=sys.stderr)\nsys.exit(5)\n"
    done = run("-m", "golden_mesh", "--system", "N150", "-c", HOLDS + ending, place=tmp_path)
    assert (done.returncode, done.stderr) == (5, "nanobind: my own line\n")


def test_a_crash_keeps_its_message_and_its_signal(tmp_path):
    crash = "import faulthandler; faulthandler.enable(); faulthandler._sigabrt()"
    done = run("-m", "golden_mesh", "--system", "N150", "-c", HOLDS + crash, place=tmp_path)
    assert done.returncode == -6 and "Fatal Python error: Aborted" in done.stderr


def test_pytest_ends_without_leak_reports(tmp_path):
    """pytest keeps tests and fixtures longest. Here they hold objects of ttnn, also in tests that do not run."""
    (tmp_path / "test_parameters.py").write_text(
        "import pytest, ttnn\n"
        "@pytest.mark.parametrize('x', [ttnn.DRAM_MEMORY_CONFIG, ttnn.UnaryWithParam(ttnn.UnaryOpType.RELU)])\n"
        "def test_one(x): pass\n"
        "@pytest.mark.parametrize('x', [ttnn.L1_MEMORY_CONFIG])\n"
        "def test_other(x): pass\n"
        "@pytest.fixture\n"
        "def place(config=ttnn.DRAM_MEMORY_CONFIG): return config\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--golden", "N150", "-k", "one"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert "2 passed, 1 deselected" in done.stdout
    assert done.stderr == "" and "leaked" not in done.stdout

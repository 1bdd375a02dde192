"""nanobind's list of leaked objects does not appear at exit. All else on stderr does, and the exit status stays."""

import pytest

# A reference too many keeps an object of ttnn for good.
HOLDS = """
import ctypes, sys, ttnn
ctypes.pythonapi.Py_IncRef(ctypes.py_object(ttnn.CoreCoord(1, 2)))
"""
EXITS = "print('nanobind: my own line', file=sys.stderr)\nsys.exit(5)\n"
CRASHES = "import faulthandler; faulthandler.enable(); faulthandler._sigabrt()"


@pytest.mark.parametrize(
    "ending, status, line",
    [(EXITS, 5, "nanobind: my own line"), (CRASHES, -6, "Fatal Python error: Aborted")],
)
def test_a_program_that_holds_objects_ends_with_its_own_stderr_and_status(
    launch, ending, status, line
):
    done = launch("--system", "N150", "-c", HOLDS + ending)
    assert done.returncode == status and done.stderr.startswith(f"{line}\n")
    assert "leaked" not in done.stderr


def test_pytest_ends_without_leak_reports(python, tmp_path):
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
    options = ("-q", "-p", "no:cacheprovider", "--golden", "N150", "-k", "one")
    done = python("-m", "pytest", *options)
    assert "2 passed, 1 deselected" in done.stdout
    assert done.stderr == "" and "leaked" not in done.stdout

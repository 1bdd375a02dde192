"""pytest --golden: any repository's tests on the golden mesh, and its users' own goldens."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"

OPENS = """
import torch, ttnn

def test_doubles():
    device = ttnn.open_device(device_id=0)
    x = ttnn.full((32, 32), 3.0, layout=ttnn.TILE_LAYOUT, device=device)
    assert ttnn.to_torch(ttnn.add(x, x))[0, 0] == 6
    ttnn.close_device(device)
"""
SKIPS = """
import pytest, ttnn

@pytest.mark.skip("wants eight chips")
def test_device():
    pass

def test_host():
    assert ttnn.GetNumAvailableDevices() == 2
"""


@pytest.fixture
def run(tmp_path):
    """run(text of a test file, *options): run pytest in a separate process and folder."""

    def run(tests, *options, conftest="", **variables):
        (tmp_path / "test_theirs.py").write_text(tests)
        (tmp_path / "conftest.py").write_text(conftest)
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        theirs = {k: v for k, v in os.environ.items() if not k.startswith(("TT_", "PYTEST"))}
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
            cwd=tmp_path, env=theirs | {"PYTHONPATH": f"{SOURCE}"} | variables,
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    return run


def test_the_system_may_come_from_mesh_device(run):
    done = run(OPENS, "--golden", "auto", MESH_DEVICE="n150")
    assert "1 passed" in done.stdout and done.returncode == 0, done.stdout + done.stderr


def test_a_run_that_opened_no_device_and_skipped_tests_fails(run):
    done = run(SKIPS, "--golden", "N300")
    assert done.returncode == 1 and "--golden-allow-skips" in done.stdout, done.stdout
    assert run(SKIPS, "--golden", "N300", "--golden-allow-skips").returncode == 0


def test_an_unknown_system_is_one_line(run):
    done = run(OPENS, "--golden", "N151")
    assert done.returncode == 4 and "N150" in done.stderr and "Traceback" not in done.stderr


HIFI4 = """
import torch, ttnn

def test_product():
    device = ttnn.open_device(device_id=0)
    x = ttnn.full((32, 32), 3.0, layout=ttnn.TILE_LAYOUT, device=device)
    config = ttnn.WormholeComputeKernelConfig(
        math_fidelity=ttnn.MathFidelity.HiFi4, fp32_dest_acc_en=True)
    try:
        ttnn.matmul(x, x, compute_kernel_config=config)
    finally:
        ttnn.close_device(device)
"""


def test_hazards_are_errors_on_request(run):
    done = run(HIFI4, "--golden", "N150", "--golden-hazards", "error")
    assert done.returncode == 1 and "HazardError" in done.stdout


SUM = """
import torch, ttnn

def test_small_products_beside_a_large_one():
    device = ttnn.open_device(device_id=0)
    x = torch.zeros(32, 32)
    x[:, 0], x[:, 1:8] = 1, 2**-12
    put = lambda x: ttnn.from_torch(x, ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)
    config = ttnn.WormholeComputeKernelConfig(
        math_fidelity=ttnn.MathFidelity.HiFi3, fp32_dest_acc_en=True)
    y = ttnn.matmul(put(x), put(torch.ones(32, 32)), dtype=ttnn.float32, compute_kernel_config=config)
    result = ttnn.to_torch(y)[0, 0].item()
    ttnn.close_device(device)
    assert result == 1
"""


def test_exact_sums_on_request(run):
    """The engine rounds products to 2**-10 of the largest of eight. The default sum is 1.0017."""
    done = run(SUM, "--golden", "N150", "--golden-sums", "exact")
    assert done.returncode == 0, done.stdout


CONFTEST = """
import golden_mesh

@golden_mesh.golden("ttnn.generic_op", unread=True)
def generic_op(io_tensors, program_descriptor):
    x, _ = io_tensors
    return 2 * x
"""
GENERIC = """
import torch, ttnn

def test_a_users_kernel():
    device = ttnn.open_device(device_id=0)
    x = ttnn.full((32, 32), 3.0, ttnn.bfloat16, ttnn.TILE_LAYOUT, device, ttnn.DRAM_MEMORY_CONFIG)
    out = ttnn.allocate_tensor_on_device(x.spec, device)
    core = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(0, 0))])
    kernel = ttnn.KernelDescriptor(
        kernel_source="void kernel_main() {}",
        source_type=ttnn.KernelDescriptor.SourceType.SOURCE_CODE,
        core_ranges=core,
        compile_time_args=[],
        runtime_args=[],
        config=ttnn.ReaderConfigDescriptor(),
    )
    program = ttnn.ProgramDescriptor(kernels=[kernel], semaphores=[], cbs=[])
    got = ttnn.generic_op([x, out], program)
    assert (ttnn.to_torch(got) == 6).all() and (ttnn.to_torch(out) == 6).all()
    ttnn.close_device(device)
"""


def test_a_users_golden_computes_a_kernel_of_their_own(run):
    done = run(GENERIC, "--golden", "N150", conftest=CONFTEST)
    assert "1 passed" in done.stdout, done.stdout[-3000:] + done.stderr[-1000:]


def test_a_failing_test_prints_its_worst_operations(run, tmp_path):
    tests = OPENS.replace("== 6", "== 7")
    done = run(tests, "--golden", "N150", "--golden-report", "reports")
    assert "golden-mesh compare" in done.stdout and "ttnn.add" in done.stdout, done.stdout
    assert "test_theirs.py:7" in done.stdout
    page = (tmp_path / "reports/test_theirs.py_test_doubles.html").read_text()
    assert (
        '"op": "ttnn.add"' in page
        and "<script" in page
        and "http" not in page.replace("http://www.w3.org", "")
    )
    assert (tmp_path / "reports/test_theirs.py_test_doubles.json").exists()


def test_reports_want_a_golden_mesh(run):
    assert "--golden SYSTEM" in run(OPENS, "--golden-report", "reports").stderr

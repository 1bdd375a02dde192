"""pytest --golden: any repository's tests on the golden mesh, and its users' own goldens."""

import pytest

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
HIFI4 = """
import torch, ttnn

def test_product():
    device = ttnn.open_device(device_id=0)
    x = ttnn.full((32, 32), 3.0, layout=ttnn.TILE_LAYOUT, device=device)
    config = ttnn.WormholeComputeKernelConfig(math_fidelity=ttnn.MathFidelity.HiFi4, fp32_dest_acc_en=True)
    ttnn.matmul(x, x, compute_kernel_config=config)
"""
SUMS = """
from golden_mesh import switches

def test_sums():
    assert switches.current.sums == "exact"
"""
RACE = """
import torch, ttnn

def test_no_event_orders_the_queues():
    device = ttnn.open_mesh_device(ttnn.MeshShape(1, 1), num_command_queues=2)
    host = ttnn.from_torch(torch.ones(32, 32), ttnn.bfloat16, layout=ttnn.TILE_LAYOUT)
    x = ttnn.to_device(host, device)
    ttnn.copy_host_to_device_tensor(host, x, cq_id=1)
    ttnn.neg(x)
"""
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
    kernel = ttnn.KernelDescriptor(
        kernel_source="void kernel_main() {}", source_type=ttnn.KernelDescriptor.SourceType.SOURCE_CODE,
        core_ranges=ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(0, 0))]),
        compile_time_args=[], runtime_args=[], config=ttnn.ReaderConfigDescriptor(),
    )
    program = ttnn.ProgramDescriptor(kernels=[kernel], semaphores=[], cbs=[])
    got = ttnn.generic_op([x, out], program)
    assert (ttnn.to_torch(got) == 6).all() and (ttnn.to_torch(out) == 6).all()
    ttnn.close_device(device)
"""
# The options, the tests, the exit status, and a part of the output.
RUNS = {
    "the system of MESH_DEVICE": ("--golden auto", OPENS, 0, "1 passed"),
    "no device and a skipped test": ("--golden N300", SKIPS, 1, "--golden-allow-skips"),
    "skips are allowed": ("--golden N300 --golden-allow-skips", SKIPS, 0, "1 passed, 1 skipped"),
    "an unknown system": ("--golden N151", OPENS, 4, "N150"),
    "no system": ("--golden-report reports", OPENS, 4, "--golden SYSTEM"),
    "hazards": ("--golden N150 --golden-hazards error", HIFI4, 1, "HazardError"),
    "exact sums": ("--golden N150 --golden-sums exact", SUMS, 0, "1 passed"),
    "races": ("--golden N150 --adversarial 1", RACE, 1, "RaceError"),
    "a user's golden": ("--golden N150", GENERIC, 0, "1 passed"),
}


@pytest.fixture
def run(python, tmp_path):
    """run(text of a test file, options): run pytest in a separate process and folder."""

    def run(tests: str, options: str):
        (tmp_path / "test_theirs.py").write_text(tests)
        (tmp_path / "conftest.py").write_text(CONFTEST)
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *options.split())
        return python(*words, MESH_DEVICE="n150")

    return run


@pytest.mark.parametrize("name", RUNS)
def test_a_run(run, name):
    options, tests, status, said = RUNS[name]
    done = run(tests, options)
    assert done.returncode == status and said in done.stdout + done.stderr, done.stdout
    assert "Traceback" not in done.stderr


def test_a_failing_test_prints_its_worst_operations(run, tmp_path):
    done = run(OPENS.replace("== 6", "== 7"), "--golden N150 --golden-report reports")
    assert "golden-mesh compare" in done.stdout and "ttnn.add" in done.stdout, done.stdout
    assert "test_theirs.py:7" in done.stdout
    page = (tmp_path / "reports/test_theirs.py_test_doubles.html").read_text()
    assert '"op": "ttnn.add"' in page and "<script" in page
    assert "http" not in page.replace("http://www.w3.org", ""), "the page loads nothing"
    assert (tmp_path / "reports/test_theirs.py_test_doubles.json").exists()

"""Pytest options, and the choice of the backend before any test module imports ttnn."""

import atexit
import gc
import os
import signal
from functools import partial

import pytest

from models.demos.qwen25_7b.config import Recipe
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.plans.machines import MACHINES, Split, machine
from models.demos.qwen25_7b.tt.mesh import describe_backend, select_backend

# torch, transformers and ttnn make two million objects, which the collector would walk again and again while they load.
gc.disable()
SIZES = ("tiny", "7b")
MARKS = {"bf16", "bfp8", "kv8", "llama_bias"}  # of a test's recipe and family
DEFAULT_MESHES = ("N150", "N300")  # what runs unless --mesh says otherwise


def pytest_addoption(parser):
    group = parser.getgroup("Qwen2.5-7B on TT-NN")
    group.addoption("--backend", default="auto", choices=("auto", "device", "golden"), help="what is below ttnn")
    group.addoption("--mesh", default=None, help=f"only this machine: {', '.join(MACHINES)}")
    group.addoption(
        "--tp",
        type=int,
        default=None,
        help="chips of a replica on --mesh N150x4, T3K or GALAXY: 1, 2, 4, 8; default each of a T3K, else all of a row",
    )
    group.addoption("--worker-dispatch", action="store_true", help="open meshes with a grid of 8x7")
    group.addoption("--queues", type=int, default=1, choices=(1, 2), help="command queues that meshes are opened with")
    group.addoption("--model", help="directory or hub id to judge in tests/accuracy (default: small)")
    group.addoption(
        "--reference", help=".refpt file that tests/accuracy judge --model by; default: Hugging Face in float32"
    )
    group.addoption(
        "--family",
        action="append",
        choices=("qwen2", "qwen3", "llama", "llama-bias"),
        help="the modules of tests/pcc: Qwen2's (default), Qwen3's, Llama 3's, a Llama with biases; may be repeated",
    )
    group.addoption(
        "--users", type=int, action="append", help="users of a decode step in tests/pcc, 1 to 32; may be repeated"
    )
    group.addoption("--size", default=None, choices=SIZES, help="only these dims: the small checkpoint's or the 7B's")


def pytest_configure(config):
    os.environ.setdefault("TT_LOGGER_LEVEL", "error")
    os.environ.setdefault("LOGURU_LEVEL", "ERROR")
    # A shell's background job ignores Ctrl-C, and nohup's program the terminal's end. So would the programs that tests
    # start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)  # a function is not inherited
    try:
        config.backend = select_backend(config.getoption("--backend"), config.getoption("--mesh") or "N300")
        Split.of(config.getoption("--mesh") or "N300", config.getoption("--tp"))
    except UserError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


# At Python's end, else ttnn lists its frozen objects as leaked. pytest looks for cycles five times before.
atexit.register(gc.unfreeze)


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config, items):
    """Skip tests that this run is not about. Mark tests as `repeat` that `make test` runs on other machines."""
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if mesh_name := params.get("mesh_name"):
            mark_by_machine(item, mesh_name, config.getoption("--worker-dispatch"))
        of_recipes = {part for value in params.values() if isinstance(value, Recipe) for part in value.name.split("-")}
        for name in MARKS & (of_recipes | {f"{params.get('family')}".replace("-", "_")}):
            item.add_marker(name)


def mark_by_machine(item, mesh_name: str, worker_dispatch: bool) -> None:
    chips, machines = (item.get_closest_marker(name) for name in ("chips", "make_test_on"))
    name, _, tp = mesh_name.partition("-tp")
    if chips and int(tp or machine(name).row) not in chips.args:
        item.add_marker(pytest.mark.skip(reason=f"it is about rows of {chips.args} chips"))
    if machines and ("8x7" if worker_dispatch else mesh_name) not in machines.args:
        item.add_marker("repeat")


def pytest_report_header(config):
    return f"below ttnn: {describe_backend(config.backend)}"


def pytest_generate_tests(metafunc):
    """Parametrize `mesh_name` and `size` over all values, or over those of the command line."""
    size = metafunc.config.getoption("--size")
    if "mesh_name" in metafunc.fixturenames:
        metafunc.parametrize("mesh_name", mesh_names(metafunc.config), scope="session")
    if "size" in metafunc.fixturenames:
        sizes = [size] if size else SIZES
        params = [pytest.param(s, marks=[pytest.mark.seven_b] * (s == "7b")) for s in sizes]
        metafunc.parametrize("size", params, scope="session")


def mesh_names(config) -> list[str]:
    """Machines, with tp where a replica has fewer chips than a row: N150, N300, T3K, T3K-tp4."""
    mesh, tp = config.getoption("--mesh"), config.getoption("--tp")
    if not mesh:
        return list(DEFAULT_MESHES)
    kind = machine(mesh)
    splits = [tp] if tp else [8, 4, 2, 1] if kind.name == "T3K" else [kind.row]
    return [kind.name if split == kind.row else f"{kind.name}-tp{split}" for split in splits]


@pytest.fixture(scope="session")
def replica_devices(mesh_name, pytestconfig):
    """The machine's replicas as mesh devices of (1, tp), opened once for all tests of the machine."""
    from models.demos.qwen25_7b.tt.mesh import open_replicas

    name, _, tp = mesh_name.partition("-tp")
    options = dict(
        worker_dispatch=pytestconfig.getoption("--worker-dispatch"), queues=pytestconfig.getoption("--queues")
    )
    with open_replicas(Split.of(name, int(tp) if tp else None), **options) as devices:
        yield devices


@pytest.fixture(scope="session")
def queues(pytestconfig) -> int:
    """Command queues that the meshes are opened with."""
    return pytestconfig.getoption("--queues")


@pytest.fixture(scope="session")
def host_alone(pytestconfig):
    """qwen25_7b_lab.options.host_alone for this run's backend: with host_alone(): ..."""
    from qwen25_7b_lab.options import host_alone

    return partial(host_alone, pytestconfig.backend)


@pytest.fixture(scope="session")
def mesh_device(replica_devices):
    """The first replica's mesh device: a row of tp chips."""
    return replica_devices[0]

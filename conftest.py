"""Pytest options, and the choice of what is below ttnn: made here, before any test module imports it."""
import os

import pytest

from models.common.errors import UserError
from models.common.mesh import MACHINES, describe_backend, machine, select_backend

SIZES = ("tiny", "7b")
MESHES = ("N150", "N300")  # what runs unless --mesh says otherwise


def pytest_addoption(parser):
    group = parser.getgroup("Qwen2.5-7B on TT-NN")
    group.addoption("--backend", default="auto", choices=("auto", "device", "golden"), help="what is below ttnn")
    group.addoption("--mesh", default=None, help=f"only this machine: {', '.join(MACHINES)}")
    group.addoption("--size", default=None, choices=SIZES, help="only these dims: the small checkpoint's or the 7B's")


def pytest_configure(config):
    os.environ.setdefault("TT_LOGGER_LEVEL", "error")
    os.environ.setdefault("LOGURU_LEVEL", "ERROR")
    try:
        config.backend = select_backend(config.getoption("--backend"), config.getoption("--mesh") or "N300")
        if config.getoption("--mesh"):
            machine(config.getoption("--mesh"))
    except UserError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_report_header(config):
    return f"below ttnn: {describe_backend(config.backend)}"


def pytest_generate_tests(metafunc):
    """`mesh_name` and `size` run over all of them, or over the one that the command line names."""
    mesh, size = metafunc.config.getoption("--mesh"), metafunc.config.getoption("--size")
    if "mesh_name" in metafunc.fixturenames:
        metafunc.parametrize("mesh_name", [machine(mesh).name] if mesh else MESHES, scope="session")
    if "size" in metafunc.fixturenames:
        metafunc.parametrize("size", [size] if size else SIZES, scope="session")


@pytest.fixture(scope="session")
def mesh_device(mesh_name):
    """The machine's mesh device, opened once for all its tests and closed after the last of them."""
    from models.common.mesh import open_mesh

    with open_mesh(mesh_name) as device:
        yield device

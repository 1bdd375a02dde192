"""Values on a golden mesh and back, and other processes, for the tests of the golden mesh itself."""

import os
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

import golden_mesh
from golden_mesh.start.systems import SYSTEMS, named
from golden_mesh.versions import NEWEST
from older_versions import FAILS, OF_THE_NEWEST
from programs import run_python
from values import Golden

TESTS = Path(__file__).resolve().parent
SOURCE = Path(golden_mesh.__file__).resolve().parents[1]  # of this repository, or installed


def pytest_collection_modifyitems(config, items):
    """With an older ttnn: mark the tests that must fail, and leave out those of one version's tables."""
    installed = version("ttnn")
    if installed == NEWEST:
        return
    config.hook.pytest_deselected(items=[item for item in items if _id(item).startswith(OF_THE_NEWEST)])
    items[:] = [item for item in items if not _id(item).startswith(OF_THE_NEWEST)]
    for item in items:
        for beginning, why in FAILS.get(installed, {}).items():
            if _id(item).startswith(beginning):
                item.add_marker(pytest.mark.xfail(reason=why, strict=True))


def _id(item) -> str:
    """The id of a test below tests/."""
    return f"{item.path.relative_to(TESTS).as_posix()}::{item.name}"


@pytest.fixture(scope="session")
def mesh_device(pytestconfig):
    """All chips of the system that --golden names, in one row."""
    import ttnn

    chips = SYSTEMS[named(pytestconfig.getoption("--golden"))].chips
    if chips > 1:
        ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    device = ttnn.open_mesh_device(ttnn.MeshShape(1, chips), l1_small_size=16 << 10, trace_region_size=64 << 20)
    yield device
    ttnn.close_mesh_device(device)
    if chips > 1:
        ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)


@pytest.fixture
def golden(mesh_device):
    return Golden(mesh_device)


@pytest.fixture
def comparison(golden):
    """What golden-mesh compare finds in a test's calls."""
    from golden_mesh.compare.comparison import comparing

    with comparing() as comparison:
        yield comparison


@pytest.fixture
def python(tmp_path):
    """python(*words, **variables): run Python in tmp_path with this package on its path. Returns the process.

    Its environment has nothing that this process's golden mesh has set.
    """
    ours = ("TT_", "OMP_WAIT", "OMPI", "TORCHINDUCTOR", "LOGURU", "PYTEST")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}

    def run(*words, cwd=tmp_path, **variables) -> subprocess.CompletedProcess:
        return run_python(*words, cwd=cwd, env=clean | {"PYTHONPATH": f"{SOURCE}"} | variables)

    return run


@pytest.fixture
def launch(python):
    """launch(*words, options=()): run golden-mesh with these words, under Python's own options."""
    return lambda *words, options=(), **how: python(*options, SOURCE / "golden_mesh", *words, **how)


@pytest.fixture
def run_as(python):
    """Run a program as another golden machine: a process can be one machine only. Returns what it prints."""

    def run(system: str, program: str, **variables) -> str:
        activate = f"from golden_mesh import activate; activate({system!r})\n"
        done = python("-c", activate + program, TT_LOGGER_LEVEL="fatal", **variables)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run

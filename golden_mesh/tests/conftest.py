"""Values on a golden mesh and back, for the tests of the golden mesh itself."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from golden_mesh.systems import SYSTEMS, named
from golden_mesh.versions import NEWEST
from older_versions import FAILS, OF_THE_NEWEST

TESTS = Path(__file__).resolve().parent
SOURCE = TESTS.parent / "src"


def pytest_collection_modifyitems(config, items):
    """With an older ttnn: mark the tests that must fail, and leave out those of one version's tables."""
    installed = version("ttnn")
    if installed == NEWEST:
        return
    config.hook.pytest_deselected(
        items=[item for item in items if _id(item).startswith(OF_THE_NEWEST)]
    )
    items[:] = [item for item in items if not _id(item).startswith(OF_THE_NEWEST)]
    for item in items:
        for beginning, why in FAILS.get(installed, {}).items():
            if _id(item).startswith(beginning):
                item.add_marker(pytest.mark.xfail(reason=why, strict=True))


def _id(item) -> str:
    """The id of a test below tests/."""
    return f"{item.path.relative_to(TESTS).as_posix()}::{item.name}"


class Golden:
    """A golden mesh: puts values on its chips, and reads them back as one torch tensor a chip."""

    def __init__(self, device):
        self.device = device
        self.chips = device.get_num_devices()

    def host(self, values, **options):
        """A host tensor of one value for all chips (replicas), or of a list with one for each."""
        import ttnn

        split = isinstance(values, list)
        mapper = (
            ttnn.ShardTensorToMesh(self.device, dim=0)
            if split
            else ttnn.ReplicateTensorToMesh(self.device)
        )
        options = {"dtype": ttnn.bfloat16, "layout": ttnn.TILE_LAYOUT} | options
        return ttnn.from_torch(
            torch.cat(values) if split else values, mesh_mapper=mapper, **options
        )

    def put(self, values, *, memory_config=None, **options):
        import ttnn

        return ttnn.to_device(
            self.host(values, **options), self.device, memory_config or ttnn.DRAM_MEMORY_CONFIG
        )

    def full(self, value: float, *shape: int, **options):
        return self.put(torch.full(shape or (1, 1, 32, 32), value), **options)

    def get(self, tensor) -> list[torch.Tensor]:
        import ttnn

        return [ttnn.to_torch(shard) for shard in ttnn.get_device_tensors(tensor)]

    def holds(self, tensor, value: float) -> bool:
        """Whether every element on every chip is `value`."""
        return all(bool((shard == value).all()) for shard in self.get(tensor))


@pytest.fixture(scope="session")
def mesh_device(pytestconfig):
    """All chips of the system that --golden names, in one row."""
    import ttnn

    chips = SYSTEMS[named(pytestconfig.getoption("--golden"))].chips
    if chips > 1:
        ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    device = ttnn.open_mesh_device(
        ttnn.MeshShape(1, chips), l1_small_size=16 << 10, trace_region_size=64 << 20
    )
    yield device
    ttnn.close_mesh_device(device)
    if chips > 1:
        ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)


@pytest.fixture
def golden(mesh_device):
    return Golden(mesh_device)


@pytest.fixture
def run_as(tmp_path):
    """Run a program as another golden machine: a process can be one machine only. Returns what it prints."""

    def run(system: str, program: str) -> str:
        activate = f"from golden_mesh import activate; activate({system!r})\n"
        done = subprocess.run(
            [sys.executable, "-c", activate + program],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": f"{SOURCE}", "TT_LOGGER_LEVEL": "fatal"},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run

"""Values on a golden mesh and back, for the tests of the golden mesh itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(config, items):
    """On a device there is no golden mesh: nothing to test, or to skip."""
    if config.backend != "golden":
        mine = [item for item in items if "golden" in item.fixturenames]
        config.hook.pytest_deselected(items=mine)
        items[:] = [item for item in items if item not in mine]


class Golden:
    """A golden mesh: puts values on its chips, and reads them back as one torch tensor a chip."""

    def __init__(self, device):
        self.device = device
        self.chips = device.get_num_devices()

    def host(self, values, **options):
        """A host tensor of one value for all chips (replicas), or of a list with one for each."""
        import ttnn

        split = isinstance(values, list)
        mapper = ttnn.ShardTensorToMesh(self.device, dim=0) if split else ttnn.ReplicateTensorToMesh(self.device)
        options = {"dtype": ttnn.bfloat16, "layout": ttnn.TILE_LAYOUT} | options
        return ttnn.from_torch(torch.cat(values) if split else values, mesh_mapper=mapper, **options)

    def put(self, values, *, memory_config=None, **options):
        import ttnn

        return ttnn.to_device(self.host(values, **options), self.device, memory_config or ttnn.DRAM_MEMORY_CONFIG)

    def full(self, value: float, *shape: int, **options):
        return self.put(torch.full(shape or (1, 1, 32, 32), value), **options)

    def get(self, tensor) -> list[torch.Tensor]:
        import ttnn

        return [ttnn.to_torch(shard) for shard in ttnn.get_device_tensors(tensor)]

    def holds(self, tensor, value: float) -> bool:
        """Whether every element on every chip is `value`."""
        return all(bool((shard == value).all()) for shard in self.get(tensor))


@pytest.fixture
def golden(mesh_device):
    return Golden(mesh_device)


@pytest.fixture
def run_as(tmp_path):
    """Run a program as another golden machine: a process can be one machine only. Returns what it prints."""

    def run(system: str, program: str) -> str:
        activate = f"from models.common.golden_mesh import activate; activate({system!r})\n"
        done = subprocess.run(
            [sys.executable, "-c", activate + program],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": f"{REPOSITORY}", "TT_LOGGER_LEVEL": "fatal"},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run

"""Tensors on the golden mesh: what every test of a golden needs."""

import pytest
import torch

from models.common.mesh import machine


class Chips:
    """Puts values on the chips of a mesh and reads them back, one torch tensor a chip."""

    def __init__(self, device):
        self.device = device
        self.count = device.get_num_devices()

    def draw(self, *shape, scale=1.0) -> list[torch.Tensor]:
        """Random values that bfloat16 holds, other ones for each chip, as float32."""
        return [(torch.randn(shape) * scale).bfloat16().float() for _ in range(self.count)]

    def put(self, values, dtype=None, layout=None, memory_config=None):
        """One tensor for all chips (replicas), or a list with one for each."""
        import ttnn

        split = isinstance(values, list)
        mapper = ttnn.ShardTensorToMesh(self.device, dim=0) if split else ttnn.ReplicateTensorToMesh(self.device)
        return ttnn.from_torch(
            torch.cat(values) if split else values,
            dtype=dtype or ttnn.bfloat16,
            layout=layout or ttnn.TILE_LAYOUT,
            device=self.device,
            mesh_mapper=mapper,
            memory_config=memory_config or ttnn.DRAM_MEMORY_CONFIG,
        )

    def put_ints(self, values):
        """int32 positions, page tables and the like, the same on every chip."""
        import ttnn

        return self.put(values.int(), ttnn.int32, ttnn.ROW_MAJOR_LAYOUT)

    def get(self, tensor) -> list[torch.Tensor]:
        import ttnn

        return [ttnn.to_torch(shard) for shard in ttnn.get_device_tensors(tensor)]


def pytest_collection_modifyitems(config, items):
    """Tests of collectives are for meshes of several chips: on one there is nothing to test, or to skip."""
    alone = [item for item in items if "several_chips" in item.fixturenames and _chips(item) == 1]
    if alone:
        config.hook.pytest_deselected(items=alone)
        items[:] = [item for item in items if item not in alone]


def _chips(item) -> int:
    name, _, tp = item.callspec.params["mesh_name"].partition("-tp")
    return int(tp or machine(name).chips)


@pytest.fixture
def several_chips(chips):
    """Asked for by tests that make sense on several chips only."""


@pytest.fixture
def chips(mesh_device, request):
    if request.config.backend != "golden":
        pytest.skip("golden functions compute only on the golden mesh")
    torch.manual_seed(0)
    return Chips(mesh_device)

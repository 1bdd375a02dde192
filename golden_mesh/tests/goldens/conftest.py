"""Tensors on the golden mesh: for every test of a golden."""

import pytest
import torch


class Chips:
    """Puts values on the chips of a mesh and reads them back, one torch tensor a chip."""

    def __init__(self, device):
        self.device = device
        self.count = device.get_num_devices()

    def draw(self, *shape, scale=1.0) -> list[torch.Tensor]:
        """Random bfloat16 values in float32, different on each chip."""
        return [(torch.randn(shape) * scale).bfloat16().float() for _ in range(self.count)]

    def put(self, values, dtype=None, layout=None, memory_config=None):
        """Put one tensor on all chips, or each tensor of a list on its chip."""
        import ttnn

        split = isinstance(values, list)
        mapper = (
            ttnn.ShardTensorToMesh(self.device, dim=0)
            if split
            else ttnn.ReplicateTensorToMesh(self.device)
        )
        return ttnn.from_torch(
            torch.cat(values) if split else values,
            dtype=dtype or ttnn.bfloat16,
            layout=layout or ttnn.TILE_LAYOUT,
            device=self.device,
            mesh_mapper=mapper,
            memory_config=memory_config or ttnn.DRAM_MEMORY_CONFIG,
        )

    def put_ints(self, values):
        """Put int32 positions or page tables on all chips."""
        import ttnn

        return self.put(values.int(), ttnn.int32, ttnn.ROW_MAJOR_LAYOUT)

    def run(self, call, want, *shapes, **put):
        """Return (call of tensors that differ by chip, want of each chip's torch tensors).

        put: `dtype`, `layout` and `memory_config` of the tensors.
        """
        inputs = [self.draw(*shape) for shape in shapes]
        return call(*(self.put(x, **put) for x in inputs)), [want(*each) for each in zip(*inputs)]

    def get(self, tensor) -> list[torch.Tensor]:
        import ttnn

        return [ttnn.to_torch(shard) for shard in ttnn.get_device_tensors(tensor)]


def pytest_collection_modifyitems(config, items):
    """Deselect tests of collectives on a mesh of one chip."""
    alone = [item for item in items if "several_chips" in item.fixturenames]
    if alone and config.getoption("--golden").upper() == "N150":
        config.hook.pytest_deselected(items=alone)
        items[:] = [item for item in items if item not in alone]


@pytest.fixture
def several_chips(chips):
    """Mark a test that needs several chips."""


@pytest.fixture
def chips(mesh_device):
    torch.manual_seed(0)
    return Chips(mesh_device)

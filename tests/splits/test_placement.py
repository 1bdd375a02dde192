"""Weights on the mesh: every chip of a row has its part, every row the same, as ShardTensor2dMesh would have cut them."""

import pytest
import torch
import ttnn

from models.demos.qwen25_7b.tt.placement import place
from models.demos.qwen25_7b.weights import ModelWeights, Projection, Table, Taken, Weight

TENSORS = {"w": torch.randn(512, 256, generator=torch.Generator().manual_seed(0)).bfloat16()}


def weight(cut: int, chips: int) -> Weight:
    """w [out, in] cut evenly along a dim."""
    extent, other = TENSORS["w"].shape[cut] // chips, TENSORS["w"].shape[1 - cut]
    parts = tuple(Projection(cut, (Taken("w", chip * extent, extent),), other) for chip in range(chips))
    return Weight(ModelWeights(TENSORS, None, None).pieces, parts)


def of_chips(tensor: ttnn.Tensor) -> list[torch.Tensor]:
    return [ttnn.to_torch(shard) for shard in ttnn.get_device_tensors(tensor)]


def assert_as_cut_by_ttnn(mesh_device, cut: int) -> None:
    rows, tp = mesh_device.shape
    ours = place(weight(cut, tp), mesh_device, "bfloat8_b")
    theirs = ttnn.from_torch(
        TENSORS["w"].t()[None, None], dtype=ttnn.bfloat8_b, layout=ttnn.TILE_LAYOUT, device=mesh_device,
        mesh_mapper=ttnn.ShardTensor2dMesh(mesh_device, (rows, tp), dims=(None, 3 - cut)),
    )  # fmt: skip
    for got, wanted in zip(of_chips(ours), of_chips(theirs), strict=True):
        assert got.equal(wanted)
    topologies = [tensor.tensor_topology() for tensor in (ours, theirs)]
    assert str(topologies[0].placements()) == str(topologies[1].placements())
    assert list(topologies[0].distribution_shape()) == list(topologies[1].distribution_shape())


@pytest.mark.parametrize("cut", [0, 1])
def test_a_row_of_chips_shares_a_weight_out(mesh_device, cut):
    assert_as_cut_by_ttnn(mesh_device, cut)


def test_a_table_is_on_every_chip(mesh_device):
    table = Weight(ModelWeights(TENSORS, None, None).pieces, (Table("w", (512, 256)),))
    chips = of_chips(place(table, mesh_device, tiled=False))
    assert len(chips) == mesh_device.get_num_devices()
    assert all(chip.equal(TENSORS["w"][None, None]) for chip in chips)

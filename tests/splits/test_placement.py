"""Weights are sharded over a mesh row and replicated over rows, as by ShardTensor2dMesh."""

from dataclasses import replace

import pytest
import torch
import ttnn

from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.plans.chip import WORMHOLE
from models.demos.qwen25_7b.plans.grids import Grid
from models.demos.qwen25_7b.plans.machines import machine
from models.demos.qwen25_7b.plans.model_table import Weight
from models.demos.qwen25_7b.plans.slices import Projection, TensorRange
from models.demos.qwen25_7b.tt import placement
from models.demos.qwen25_7b.tt.placement import chip_of, place
from models.demos.qwen25_7b.weights.model_weights import build_shard

TENSORS = {"w": torch.randn(512, 256, generator=torch.Generator().manual_seed(0)).bfloat16()}


def build(shard):
    return build_shard(shard, TENSORS.__getitem__)


def weight(split_dim: int, chips: int) -> Weight:
    """Return w [out, in] cut evenly along a dim."""
    extent, other = TENSORS["w"].shape[split_dim] // chips, TENSORS["w"].shape[1 - split_dim]
    slices = tuple(Projection(split_dim, (TensorRange("w", chip * extent, extent),), other) for chip in range(chips))
    return Weight(slices, "bfloat8_b")


def of_chips(tensor: ttnn.Tensor) -> list[torch.Tensor]:
    return [ttnn.to_torch(shard) for shard in ttnn.get_device_tensors(tensor)]


@pytest.mark.parametrize("split_dim", [0, 1])
def test_a_mesh_row_divides_a_weight(mesh_device, split_dim):
    rows, tp = mesh_device.shape
    ours = place(weight(split_dim, tp), mesh_device, build)
    theirs = ttnn.from_torch(
        TENSORS["w"].t()[None, None], dtype=ttnn.bfloat8_b, layout=ttnn.TILE_LAYOUT, device=mesh_device,
        mesh_mapper=ttnn.ShardTensor2dMesh(mesh_device, (rows, tp), dims=(None, 3 - split_dim)),
    )  # fmt: skip
    for got, expected in zip(of_chips(ours), of_chips(theirs), strict=True):
        assert got.equal(expected)
    topologies = [tensor.tensor_topology() for tensor in (ours, theirs)]
    assert str(topologies[0].placements()) == str(topologies[1].placements())
    assert list(topologies[0].distribution_shape()) == list(topologies[1].distribution_shape())


def test_a_single_slice_is_on_every_chip(mesh_device):
    """Of a projection, too, as Weight says."""
    chips = mesh_device.get_num_devices()
    if chips == 1:
        pytest.skip("it has one chip")
    whole = Weight((Projection(0, (TensorRange("w", 0, 512),), 256),))
    placed = of_chips(place(whole, mesh_device, build))
    assert len(placed) == chips and all(chip.equal(placed[0]) for chip in placed)
    assert placed[0].shape[-2:] == (256, 512)


def test_the_mesh_has_the_chips_of_its_machine(mesh_device, mesh_name, pytestconfig):
    """As the table says before a device is open; worker dispatch takes a row of cores."""
    planned = machine(mesh_name.partition("-tp")[0]).chip
    if pytestconfig.getoption("--worker-dispatch"):
        planned = replace(planned, grid=Grid(8, 7))
    assert chip_of(mesh_device) == planned


def test_chips_without_a_row_in_the_table_are_refused(mesh_device, monkeypatch):
    chip = chip_of(mesh_device)
    theirs = f"{chip.architecture} with {chip.banks}"
    monkeypatch.setattr(placement, "CHIPS", [replace(WORMHOLE, banks=7)])
    with pytest.raises(UserError, match=rf"made for WORMHOLE_B0 with 7 banks of DRAM; these chips are {theirs}"):
        chip_of(mesh_device)

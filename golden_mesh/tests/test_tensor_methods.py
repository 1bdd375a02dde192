"""The methods of ttnn.Tensor, which models use to move and read tensors: as in the library, with values."""

import pytest
import torch
import ttnn

import golden_mesh
from golden_mesh.errors import GoldenError
from goldens import support

BF16, TILES, ROWS = ttnn.bfloat16, ttnn.TILE_LAYOUT, ttnn.ROW_MAJOR_LAYOUT


@pytest.fixture
def parts(golden):
    """The values of each chip. They differ by chip and are exact in bfloat16."""
    whole = (torch.arange(32 * 64) % 61).view(1, 1, 32, 64).float()
    return [whole + chip for chip in range(golden.chips)]


def sharded(layout: str = "WIDTH", buffer: str = "L1"):
    """Two shards of a [1, 1, 32, 64]."""
    return support.sharded(layout, (32, 32) if layout == "WIDTH" else (32, 64), 2, buffer=buffer)


@pytest.mark.parametrize("dim", [0, 3])
def test_every_way_to_read_gives_what_the_chips_hold(golden, parts, dim):
    tensor = golden.put(parts)
    composer = ttnn.ConcatMeshToTensor(golden.device, dim=dim)
    whole = torch.cat(parts, dim)
    exact = golden.put(parts, dtype=ttnn.float32)
    assert (exact.to_numpy(mesh_composer=composer) == whole.numpy()).all()
    for read in (
        tensor.to_torch(mesh_composer=composer),
        ttnn.to_torch(tensor, mesh_composer=composer),
        tensor.cpu().to_torch(mesh_composer=composer),
        ttnn.aggregate_tensor(tensor, composer).to_torch(),
    ):
        assert read.float().equal(whole)
    for part, shard in zip(parts, ttnn.get_device_tensors(tensor), strict=True):
        for read in (shard, shard.cpu(), ttnn.from_device(shard)):
            assert read.to_torch().float().equal(part)
        assert shard.to_torch_with_padded_shape().float().equal(part)
        assert torch.tensor(shard.to_list()).equal(part)
    combined = ttnn.combine_device_tensors(tensors=ttnn.get_device_tensors(tensor))
    assert golden.holds(combined, parts)
    assert ttnn.get_device_tensors(golden.full(7, 1, 1, 1, 1))[-1].item() == 7


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("padding", [None, -3.0])
def test_padding_from_the_host_can_be_read_and_that_of_a_moved_tensor_cannot(golden, padding, at_once):
    ones = torch.ones(1, 1, 5, 7)
    device = golden.device if at_once else None
    sent = ttnn.from_torch(ones, BF16, layout=TILES, device=device, pad_value=padding)
    sent = ttnn.to_device(sent, golden.device)
    want = torch.nn.functional.pad(ones, (0, 25, 0, 27), value=padding or 0.0)
    for shard in ttnn.get_device_tensors(sent):
        assert shard.to_torch_with_padded_shape().float().equal(want)
    shard = ttnn.get_device_tensors(ttnn.abs(sent))[0]
    assert shard.to_torch_with_padded_shape().float().equal(want.abs())
    shard = ttnn.get_device_tensors(ttnn.transpose(ttnn.transpose(sent, 2, 3), 2, 3))[0]
    with pytest.raises(GoldenError, match=r"to_torch_with_padded_shape of \[1, 1, 5, 7\].*padding"):
        shard.to_torch_with_padded_shape()
    assert shard.to_torch().sum() == 35


@pytest.mark.parametrize("layout", [TILES, ROWS], ids=str)
def test_a_tensor_is_printed_as_the_library_prints_it(golden, parts, layout):
    """Compares zeros, because the mock prints any tensor as zeros."""
    library = ttnn.Tensor.__repr__.__wrapped__
    zeros = golden.full(0, 1, 1, 32, 64, layout=layout)
    for tensor in (zeros, ttnn.get_device_tensors(zeros)[-1], zeros.cpu()):
        assert repr(tensor) == str(tensor) == f"{tensor}" == library(tensor)
    ttnn.deallocate(zeros)
    assert repr(zeros) == library(zeros)  # says that the tensor is deallocated
    text = str(golden.put([part + 100 for part in parts], layout=layout))
    for place, chip in enumerate(golden.device.get_device_ids()):
        assert f"[[[[{100 + place}.0000" in text
        assert golden.chips == 1 or f"device_id: {chip}, MeshCoordinate([0, {place}])\n" in text


def test_blocks_without_values_may_be_nested(golden):
    """The end of the inner block does not end the outer one."""
    one, out = golden.full(1.0), golden.full(0.0)
    with golden_mesh.without_values():
        with golden_mesh.without_values():
            pass
        ttnn.add(one, one, output_tensor=out)
    assert golden.holds(out, 0.0)
    ttnn.add(one, one, output_tensor=out)
    assert golden.holds(out, 2.0)


@pytest.mark.parametrize("config", [None, ("WIDTH", "L1"), ("HEIGHT", "L1"), ("WIDTH", "DRAM")])
def test_a_tensor_stays_as_it_is_placed_on_every_way_there_and_back(golden, parts, config, tmp_path):
    config = sharded(*config) if config else ttnn.DRAM_MEMORY_CONFIG
    host, file = golden.host(parts, memory_config=config), tmp_path / "dumped.tensorbin"
    target = golden.full(9, 1, 1, 32, 64, memory_config=config)
    ttnn.copy_host_to_device_tensor(host, target)
    ttnn.dump_tensor(file, target)
    for there in (
        target,
        host.to(golden.device),
        ttnn.to_device(host, golden.device, config),
        golden.host(parts).to(golden.device, config),
        ttnn.load_tensor(file, device=golden.device),
    ):
        assert there.memory_config() == config and golden.holds(there, parts)
        for back in (there.cpu(), ttnn.from_device(there)):
            assert back.memory_config() == config and back.spec == there.spec
            again = back.to(golden.device)
            assert again.memory_config() == config and golden.holds(again, parts)
    plain = ttnn.to_device(host, golden.device)  # without a memory config: as in the library
    assert plain.memory_config() == ttnn.DRAM_MEMORY_CONFIG


PLAIN_TILES = [(tile, False) for tile in ((16, 32), (32, 16), (16, 16))]


@pytest.mark.parametrize(
    "dtype, tile",
    [("bfloat16", tile) for tile in PLAIN_TILES]
    + [("bfloat8_b", tile) for tile in (*PLAIN_TILES, ((32, 32), True))]
    + [("bfloat4_b", ((32, 32), True))],
)
def test_another_tile_is_kept_and_block_floats_are_rounded_once(golden, dtype, tile):
    """The blocks of transposed tiles run down the columns."""
    tile = ttnn.Tile(tile[0], transpose_tile=tile[1])
    source = torch.randn(1, 1, 64, 64) * torch.logspace(-3, 3, 64)
    host = golden.host(source, tile=tile, dtype=getattr(ttnn, dtype))
    packed = ttnn.get_device_tensors(host)[0].to_torch()
    there = host.to(golden.device)
    again = there.cpu().to(golden.device)
    assert there.tile == there.cpu().tile == again.tile == tile
    assert golden.holds(there, packed) and golden.holds(again, packed)


UNCHANGED = {
    "to_device": lambda t, d: ttnn.to_device(t, d),
    "to_device, L1": lambda t, d: ttnn.to_device(t, d, memory_config=ttnn.L1_MEMORY_CONFIG),
    "to": lambda t, d: t.to(d),
    "to, L1": lambda t, d: t.to(device=d, mem_config=ttnn.L1_MEMORY_CONFIG),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_tensors_on_the_device_are_unchanged(golden, parts, name):
    """Other models' decode steps do this. The library returns the tensor itself, for any memory config."""
    tensor = golden.put(parts)
    again = UNCHANGED[name](tensor, golden.device)
    assert again.tensor_id == tensor.tensor_id
    assert again.memory_config() == ttnn.DRAM_MEMORY_CONFIG
    assert golden.holds(again, parts) and golden.holds(tensor, parts)
    golden.capture(lambda: UNCHANGED[name](tensor, golden.device))  # writes nothing, so the capture allows it


def test_to_by_keywords_and_to_another_layout(golden, parts):
    host = golden.host(parts)
    for again in (host.cpu(), ttnn.from_device(host)):
        assert again.tensor_id == host.tensor_id, "tensors on the host are unchanged"
    there = host.to(device=golden.device, mem_config=ttnn.L1_MEMORY_CONFIG, cq_id=0)
    assert there.memory_config() == ttnn.L1_MEMORY_CONFIG and golden.holds(there, parts)
    for rows in (there.to(ROWS), there.to(target_layout=ROWS)):
        assert rows.layout == ROWS and rows.storage_type() == ttnn.StorageType.DEVICE
        assert rows.memory_config() == ttnn.L1_MEMORY_CONFIG and golden.holds(rows, parts)
    assert host.to(ROWS).storage_type() == ttnn.StorageType.HOST
    with pytest.raises(TypeError, match="incompatible function arguments"):
        there.to(3)


VALUES = torch.arange(32 * 64).view(1, 1, 32, 64).float() % 251
LIST = VALUES.flatten().tolist(), [1, 1, 32, 64]
WHOLE = VALUES.flatten().int().tolist(), [1, 1, 32, 64]
MADE = {
    "tensor": lambda d: ttnn.Tensor(VALUES, BF16, d, TILES),
    "sharded": lambda d: ttnn.Tensor(VALUES, BF16, d, TILES, sharded()),
    "by name": lambda d: ttnn.Tensor(tensor=VALUES, data_type=BF16, device=d, layout=ROWS),
    "list": lambda d: ttnn.Tensor(*LIST, ttnn.float32, TILES, d),
    "list, sharded": lambda d: ttnn.Tensor(*LIST, BF16, TILES, d, sharded()),
    "integers": lambda d: ttnn.Tensor(*WHOLE, ttnn.uint32, TILES, device=d),
    "buffer": lambda d: ttnn.from_buffer(*LIST, BF16, d, TILES, sharded()),
}


@pytest.mark.parametrize("name", MADE)
def test_the_constructor_writes_to_the_device(golden, name):
    tensor = MADE[name](golden.device)
    assert tensor.storage_type() == ttnn.StorageType.DEVICE
    for each in (tensor, ttnn.Tensor(tensor)):
        assert golden.holds(each, VALUES)


def test_the_constructor_splits_over_chips(golden):
    mapper = ttnn.ShardTensorToMesh(golden.device, dim=0)
    whole = torch.cat([VALUES + chip for chip in range(golden.chips)])
    split = ttnn.Tensor(whole, ttnn.float32, golden.device, TILES, mesh_mapper=mapper)
    assert golden.holds(split, list(whole.split(1)))

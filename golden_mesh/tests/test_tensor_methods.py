"""The methods of ttnn.Tensor, which models use to move and read tensors: as in the library, with values."""

import pytest
import torch
import ttnn

import golden_mesh
from golden_mesh.errors import GoldenError


@pytest.fixture
def parts(golden):
    """The values of each chip. They differ by chip and are exact in bfloat16."""
    return [
        (torch.arange(32 * 64) % 61 + chip).view(1, 1, 32, 64).float()
        for chip in range(golden.chips)
    ]


def sharded(layout: str = "WIDTH", buffer: str = "L1"):
    """Two shards of a [1, 1, 32, 64]."""
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(1, 0))})
    shape = (32, 32) if layout == "WIDTH" else (32, 64)
    return ttnn.MemoryConfig(
        getattr(ttnn.TensorMemoryLayout, f"{layout}_SHARDED"),
        getattr(ttnn.BufferType, buffer),
        ttnn.ShardSpec(cores, shape, ttnn.ShardOrientation.ROW_MAJOR),
    )


def same(golden, tensor, wanted: list[torch.Tensor]) -> bool:
    return all(g.float().equal(w.float()) for g, w in zip(golden.get(tensor), wanted, strict=True))


# ---- reading


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
    assert same(golden, ttnn.combine_device_tensors(tensors=ttnn.get_device_tensors(tensor)), parts)
    assert ttnn.get_device_tensors(golden.full(7, 1, 1, 1, 1))[-1].item() == 7


@pytest.mark.parametrize("padding", [None, -3.0])
def test_padding_from_the_host_can_be_read(golden, padding):
    ones = torch.ones(1, 1, 5, 7)
    sent = ttnn.from_torch(
        ones, ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=golden.device, pad_value=padding
    )
    want = torch.nn.functional.pad(ones, (0, 25, 0, 27), value=padding or 0.0)
    for shard in ttnn.get_device_tensors(sent):
        assert shard.to_torch_with_padded_shape().float().equal(want)


def test_padding_of_a_result_cannot_be_read(golden):
    shard = ttnn.get_device_tensors(ttnn.abs(golden.full(1, 1, 1, 5, 7)))[0]
    with pytest.raises(GoldenError, match=r"to_torch_with_padded_shape of \[1, 1, 5, 7\].*padding"):
        shard.to_torch_with_padded_shape()
    assert shard.to_torch().sum() == 35


@pytest.mark.parametrize("layout", ["TILE", "ROW_MAJOR"])
def test_a_tensor_is_printed_as_the_library_prints_it(golden, layout):
    """Uses zeros, because the mock prints any tensor as zeros."""
    library = ttnn.Tensor.__repr__.__wrapped__
    zeros = golden.full(0, 1, 1, 32, 64, layout=getattr(ttnn, f"{layout}_LAYOUT"))
    host = zeros.cpu()
    for tensor in (zeros, ttnn.get_device_tensors(zeros)[-1], host):
        assert repr(tensor) == str(tensor) == f"{tensor}" == library(tensor)
    ttnn.deallocate(zeros)
    assert repr(zeros) == library(zeros)  # says that the tensor is deallocated


def test_printing_shows_the_values(golden, parts):
    text = str(golden.put([part + 100 for part in parts]))
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


# ---- to the device and back


@pytest.mark.parametrize("layout, buffer", [("WIDTH", "L1"), ("HEIGHT", "L1"), ("WIDTH", "DRAM")])
def test_a_sharded_tensor_stays_sharded_on_its_way_there_and_back(
    golden, parts, layout, buffer, tmp_path
):
    config = sharded(layout, buffer)
    host = golden.host(parts, memory_config=config)
    ttnn.dump_tensor(tmp_path / "dumped.tensorbin", host.to(golden.device))
    for there in (
        host.to(golden.device),
        ttnn.to_device(host, golden.device, config),
        golden.host(parts).to(golden.device, config),
        ttnn.load_tensor(tmp_path / "dumped.tensorbin", device=golden.device),
    ):
        assert there.memory_config() == config and same(golden, there, parts)
        for back in (there.cpu(), ttnn.from_device(there)):
            assert back.memory_config() == config and back.spec == there.spec
            again = back.to(golden.device)
            assert again.memory_config() == config and same(golden, again, parts)


def test_to_device_without_a_memory_config_is_interleaved_dram_as_in_the_library(golden, parts):
    there = ttnn.to_device(golden.host(parts, memory_config=sharded()), golden.device)
    assert there.memory_config() == ttnn.DRAM_MEMORY_CONFIG


@pytest.mark.parametrize("tile", [(16, 32), (32, 16), (16, 16)])
@pytest.mark.parametrize("dtype", ["bfloat16", "bfloat8_b"])
def test_another_tile_shape_is_kept(golden, parts, tile, dtype):
    host = golden.host(parts, tile=ttnn.Tile(tile), dtype=getattr(ttnn, dtype))
    there = host.to(golden.device)
    back = there.cpu()
    assert there.tile == back.tile == ttnn.Tile(tile)
    assert back.to(golden.device).tile == ttnn.Tile(tile)
    assert same(golden, there, [shard.to_torch() for shard in ttnn.get_device_tensors(host)])


@pytest.mark.parametrize("dtype", ["bfloat8_b", "bfloat4_b"])
def test_block_floats_of_a_transposed_tile_are_rounded_once(golden, dtype):
    """The blocks of transposed tiles run down the columns."""
    source = torch.randn(1, 1, 64, 64) * torch.logspace(-3, 3, 64)
    host = golden.host(
        source, dtype=getattr(ttnn, dtype), tile=ttnn.Tile((32, 32), transpose_tile=True)
    )
    packed = ttnn.get_device_tensors(host)[0].to_torch()
    there = host.to(golden.device)
    assert same(golden, there, [packed] * golden.chips)
    assert same(golden, there.cpu().to(golden.device), [packed] * golden.chips)


# ---- tensors that are on the device already


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
    assert same(golden, again, parts) and same(golden, tensor, parts)
    trace = ttnn.begin_trace_capture(golden.device, cq_id=0)
    UNCHANGED[name](tensor, golden.device)  # writes nothing, so the capture allows it
    ttnn.end_trace_capture(golden.device, trace, cq_id=0)


def test_tensors_on_the_host_are_unchanged(golden, parts):
    host = golden.host(parts)
    for again in (host.cpu(), ttnn.from_device(host)):
        assert again.tensor_id == host.tensor_id and same(golden, again, parts)


def test_to_by_keywords_and_to_another_layout(golden, parts):
    there = golden.host(parts).to(device=golden.device, mem_config=ttnn.L1_MEMORY_CONFIG, cq_id=0)
    assert there.memory_config() == ttnn.L1_MEMORY_CONFIG and same(golden, there, parts)
    for rows in (there.to(ttnn.ROW_MAJOR_LAYOUT), there.to(target_layout=ttnn.ROW_MAJOR_LAYOUT)):
        assert (
            rows.layout == ttnn.ROW_MAJOR_LAYOUT and rows.storage_type() == ttnn.StorageType.DEVICE
        )
        assert rows.memory_config() == ttnn.L1_MEMORY_CONFIG and same(golden, rows, parts)
    assert golden.host(parts).to(ttnn.ROW_MAJOR_LAYOUT).storage_type() == ttnn.StorageType.HOST
    with pytest.raises(TypeError, match="incompatible function arguments"):
        there.to(3)


# ---- made on the device, without ttnn.from_torch


VALUES = torch.arange(32 * 64).view(1, 1, 32, 64).float() % 251
BF16, TILES = ttnn.bfloat16, ttnn.TILE_LAYOUT
LIST = VALUES.flatten().tolist(), [1, 1, 32, 64]
WHOLE = VALUES.flatten().int().tolist(), [1, 1, 32, 64]
MADE = {
    "tensor": lambda d: ttnn.Tensor(VALUES, BF16, d, TILES),
    "sharded": lambda d: ttnn.Tensor(VALUES, BF16, d, TILES, sharded()),
    "by name": lambda d: ttnn.Tensor(
        tensor=VALUES, data_type=BF16, device=d, layout=ttnn.ROW_MAJOR_LAYOUT
    ),
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
        assert same(golden, each, [VALUES] * golden.chips)


def test_the_constructor_splits_over_chips(golden):
    mapper = ttnn.ShardTensorToMesh(golden.device, dim=0)
    whole = torch.cat([VALUES + chip for chip in range(golden.chips)])
    split = ttnn.Tensor(whole, ttnn.float32, golden.device, TILES, mesh_mapper=mapper)
    assert same(golden, split, list(whole.split(1)))


def test_a_constructor_does_not_read_old_values_at_its_address(golden):
    """The allocator reuses the memory of a freed tensor. Without the constructor's stand-in its old values
    would be read.
    """
    old = golden.full(1)
    address = old.buffer_address()
    ttnn.deallocate(old)
    new = ttnn.Tensor(
        torch.full((1, 1, 32, 32), 2.0), ttnn.bfloat16, golden.device, ttnn.TILE_LAYOUT
    )
    assert new.buffer_address() == address and golden.holds(new, 2)


def test_distribute_tensor(golden, parts):
    host = ttnn.from_torch(torch.cat(parts), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT)
    mapper = ttnn.ShardTensorToMesh(golden.device, dim=0)
    assert same(golden, ttnn.distribute_tensor(host, mapper, golden.device), parts)
    assert ttnn.distribute_tensor(host, mapper).storage_type() == ttnn.StorageType.HOST


def test_empty_like_of_a_host_tensor(golden):
    """The library crashes without a device."""
    host = golden.host(torch.ones(1, 1, 32, 32))
    assert ttnn.empty_like(host, device=golden.device).storage_type() == ttnn.StorageType.DEVICE
    with pytest.raises(GoldenError, match="needs a device"):
        ttnn.empty_like(host)


# ---- copies into existing tensors


@pytest.mark.parametrize(
    "dtype, layout", [("bfloat16", "TILE"), ("bfloat8_b", "TILE"), ("float32", "ROW_MAJOR")]
)
def test_copy_device_to_host(golden, parts, dtype, layout):
    tensor = golden.put(parts, dtype=getattr(ttnn, dtype), layout=getattr(ttnn, f"{layout}_LAYOUT"))
    host = ttnn.allocate_tensor_on_host(tensor.spec, golden.device)
    ttnn.copy_device_to_host_tensor(tensor, host)
    for shard, wanted in zip(ttnn.get_device_tensors(host), golden.get(tensor), strict=True):
        assert shard.to_torch().equal(wanted)


def test_copies_between_tensors_that_are_in_the_wrong_place(golden):
    """The library crashes."""
    there, host = golden.full(1), golden.host(torch.ones(1, 1, 32, 32))
    for copy in (ttnn.copy_host_to_device_tensor, ttnn.copy_device_to_host_tensor):
        with pytest.raises(GoldenError, match="_tensor is on the"):
            copy(there, there)
        with pytest.raises(GoldenError, match="_tensor is on the"):
            copy(host, host)
    ttnn.deallocate(there)
    with pytest.raises(RuntimeError, match="not allocated"):
        ttnn.copy_host_to_device_tensor(host, there)


# ---- indexing


def test_indexing(golden, parts):
    tensor = golden.put(parts)
    assert same(golden, tensor[:, :, 3:7, 10:], [part[:, :, 3:7, 10:] for part in parts])
    assert same(golden, tensor[0, 0], [part[0, 0] for part in parts])
    assert same(golden, tensor[..., 32:64], [part[..., 32:64] for part in parts])

"""Transfers by every function that ttnn has. Each chip holds the bytes that ttnn would send, in its number format."""

import threading

import pytest
import torch
import ttnn

from golden_mesh.errors import GoldenError
from golden_mesh.mesh import dispatch
from goldens.support import sharded

SHAPES = [(1, 1, 32, 32), (3, 5, 7), (1, 33), (5,), (2, 1, 70, 130), (1, 1, 1, 1)]
EXACT = ("float32", "uint32", "int32", "uint16")
FORMATS = [(dtype, "TILE") for dtype in ("bfloat16", "bfloat8_b", "bfloat4_b", *EXACT)]
FORMATS += [(dtype, "ROW_MAJOR") for dtype in ("bfloat16", *EXACT)]


def values(dtype: str, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    if "int" in dtype:
        return torch.randint(0, 60000, shape, generator=generator, dtype=torch.int32)
    return torch.randn(shape, generator=generator)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype, layout", FORMATS)
def test_every_format_and_shape_comes_back_as_ttnn_packs_it(golden, dtype, layout, shape):
    """Also into a host tensor that exists."""
    source = values(dtype, *shape)
    host = golden.host(source, dtype=getattr(ttnn, dtype), layout=getattr(ttnn, f"{layout}_LAYOUT"))
    packed = ttnn.get_device_tensors(host)[0].to_torch()
    tensor = ttnn.to_device(host, golden.device)
    assert (tensor.dtype, tensor.layout, tuple(tensor.shape)) == (host.dtype, host.layout, shape)
    assert golden.holds(tensor, packed)
    if dtype in EXACT:
        assert packed.double().equal(source.double()), "exact formats lose nothing"
    copy = ttnn.allocate_tensor_on_host(tensor.spec, golden.device)
    ttnn.copy_device_to_host_tensor(tensor, copy)
    for shard in ttnn.get_device_tensors(copy):
        assert shard.to_torch().equal(packed)


MAPPERS = {
    "shards": lambda mesh, whole: (ttnn.ShardTensorToMesh(mesh, dim=2), list(whole.chunk(mesh.get_num_devices(), 2))),
    "replicas": lambda mesh, whole: (ttnn.ReplicateTensorToMesh(mesh), whole),
    "unmapped": lambda mesh, whole: (None, whole),
}


@pytest.mark.parametrize("name", MAPPERS)
def test_shards_go_to_their_chips_and_replicas_to_all(golden, name):
    whole = torch.arange(golden.chips * 64 * 32).view(1, 1, 64 * golden.chips, 32).float() % 251
    mapper, wanted = MAPPERS[name](golden.device, whole)
    options = dict(dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, mesh_mapper=mapper)
    sent = ttnn.from_torch(whole, device=golden.device, **options)
    assert golden.holds(sent, wanted)
    if name == "shards":
        host = ttnn.from_torch(whole, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT)
        assert golden.holds(ttnn.distribute_tensor(host, mapper, golden.device), wanted)


@pytest.mark.parametrize("layout", ["TILE", "ROW_MAJOR"])
def test_a_later_change_on_the_host_does_not_change_a_transfer(golden, layout):
    """A program may write into a torch tensor after sending it."""
    source = torch.ones(1, 1, 32, 32)
    where = dict(layout=getattr(ttnn, f"{layout}_LAYOUT"), device=golden.device)
    tensor = ttnn.from_torch(source, dtype=ttnn.float32, **where)
    source.fill_(5)
    assert golden.holds(tensor, 1)
    golden.get(tensor)[0].fill_(6)
    assert golden.holds(tensor, 1)


@pytest.mark.parametrize("config", [ttnn.DRAM_MEMORY_CONFIG, sharded("WIDTH", (64, 32), 2, buffer="DRAM")])
def test_a_cache_file_serves_the_second_start(golden, tmp_path, config):
    how = dict(device=golden.device, layout=ttnn.TILE_LAYOUT, memory_config=config, cache_file_name=tmp_path / "weight")
    how |= dict(dtype=ttnn.bfloat8_b, mesh_mapper=ttnn.ShardTensorToMesh(golden.device, dim=3))
    source = torch.randn(1, 1, 64, 64 * golden.chips, generator=torch.Generator().manual_seed(0))
    first = golden.get(ttnn.as_tensor(source, **how))
    assert len(list(tmp_path.iterdir())) == 1
    second = ttnn.as_tensor(torch.zeros_like(source), **how)  # the file is there, so these values are ignored
    assert golden.holds(second, first) and second.memory_config() == config
    for chip, shard in enumerate(source.chunk(golden.chips, dim=3)):
        assert (first[chip] - shard).abs().max() < 0.05


# Rows of the tensor go over rows of the mesh and columns over columns, and back.
BOTH_DIMS = """
import torch, ttnn

ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
mesh = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
whole = ((7 * torch.arange(64)[:, None] + 3 * torch.arange(128)) % 251).float()[None, None]
rows, columns = whole.chunk(2, 2), list(whole.chunk(4, 3))

def send(dims):
    mapper = ttnn.ShardTensor2dMesh(mesh, dims=dims, mesh_shape=(2, 4))
    return ttnn.from_torch(whole, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=mapper)

for dims, wanted in (
    ((2, 3), [tile for row in rows for tile in row.chunk(4, 3)]),
    ((None, 3), 2 * columns),  # replicated over the mesh's rows
    ((2, None), [row for row in rows for _ in range(4)]),
):
    shards = [ttnn.to_torch(shard).float() for shard in ttnn.get_device_tensors(send(dims))]
    print(all(got.equal(want) for got, want in zip(shards, wanted, strict=True)))
both = send((2, 3))
composer = ttnn.ConcatMesh2dToTensor(mesh, dims=(2, 3), mesh_shape=(2, 4))
print(ttnn.to_torch(ttnn.add(both, both), mesh_composer=composer).float().equal(2 * whole))
ttnn.close_mesh_device(mesh)
"""


def test_both_dims_of_a_mesh(run_as):
    assert run_as("T3K", BOTH_DIMS).split()[-4:] == ["True"] * 4


def test_to_dtype_converts_on_the_host_and_on_a_device_the_library_refuses(golden):
    """The error is the library's own, not that of an op without a golden. No golden could help."""
    host = ttnn.to_dtype(golden.host(torch.full((1, 1, 32, 32), 1.01)), ttnn.float32)
    assert host.dtype == ttnn.float32 and golden.holds(host, 1.0078125)
    with pytest.raises(RuntimeError, match="HostStorage"):
        ttnn.to_dtype(golden.full(1), ttnn.float32)


def test_tensors_in_the_wrong_place_are_refused(golden):
    """The library crashes."""
    there, host = golden.full(1), golden.host(torch.ones(1, 1, 32, 32))
    for copy in (ttnn.copy_host_to_device_tensor, ttnn.copy_device_to_host_tensor):
        for tensor in (there, host):
            with pytest.raises(GoldenError, match="_tensor is on the"):
                copy(tensor, tensor)
    ttnn.deallocate(there)
    with pytest.raises(RuntimeError, match="not allocated"):
        ttnn.copy_host_to_device_tensor(host, there)
    assert ttnn.empty_like(host, device=golden.device).storage_type() == ttnn.StorageType.DEVICE
    with pytest.raises(GoldenError, match="needs a device"):
        ttnn.empty_like(host)


def test_a_thread_that_makes_host_tensors_hides_no_other_threads_call(golden, monkeypatch):
    """A loader packs weights ahead while the main thread sends and computes."""
    packing, go_on = threading.Event(), threading.Event()

    def slow(real, *args, **kwargs):
        packing.set()
        assert go_on.wait(60)
        return real(*args, **kwargs)

    x = golden.full(1)
    monkeypatch.setitem(dispatch.HANDLERS, "ttnn.from_torch", slow)
    worker = threading.Thread(target=ttnn.from_torch, args=(torch.ones(32, 32),))
    worker.start()
    try:
        assert packing.wait(60)
        y = ttnn.neg(x)
    finally:
        go_on.set()
        worker.join()
    assert golden.holds(y, -1)

"""Transfers by every function that ttnn has.

Each chip holds the bytes that ttnn would send, in its number format.
"""

import threading

import pytest
import torch
import ttnn

from golden_mesh.errors import GoldenError

SHAPES = [(1, 1, 32, 32), (3, 5, 7), (1, 33), (5,), (2, 1, 70, 130), (1, 1, 1, 1)]
FORMATS = [
    (dtype, "TILE")
    for dtype in ("bfloat16", "float32", "uint32", "int32", "uint16", "bfloat8_b", "bfloat4_b")
]
FORMATS += [(dtype, "ROW_MAJOR") for dtype in ("bfloat16", "float32", "uint32", "int32", "uint16")]


def values(dtype: str, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    if "int" in dtype:
        return torch.randint(0, 60000, shape, generator=generator, dtype=torch.int32)
    return torch.randn(shape, generator=generator)


def assert_holds(golden, tensor, wanted: list[torch.Tensor]) -> None:
    got = golden.get(tensor)
    assert len(got) == len(wanted)
    for chip, (g, w) in enumerate(zip(got, wanted)):
        assert g.shape == w.shape and g.double().equal(w.double()), f"chip {chip}"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype, layout", FORMATS)
def test_every_format_and_shape_comes_back_as_ttnn_packs_it(golden, dtype, layout, shape):
    source = values(dtype, *shape)
    host = golden.host(source, dtype=getattr(ttnn, dtype), layout=getattr(ttnn, f"{layout}_LAYOUT"))
    packed = ttnn.get_device_tensors(host)[0].to_torch()
    tensor = ttnn.to_device(host, golden.device)
    assert (tensor.dtype, tensor.layout, tuple(tensor.shape)) == (host.dtype, host.layout, shape)
    assert_holds(golden, tensor, [packed] * golden.chips)
    if dtype in ("float32", "uint32", "int32", "uint16"):
        assert packed.double().equal(source.double()), "exact formats lose nothing"
    ttnn.deallocate(tensor)


def test_shards_go_to_their_chips_and_replicas_to_all(golden):
    whole = torch.arange(golden.chips * 64 * 32).view(1, 1, 64 * golden.chips, 32).float() % 251
    options = dict(dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=golden.device)
    shards = ttnn.from_torch(
        whole, mesh_mapper=ttnn.ShardTensorToMesh(golden.device, dim=2), **options
    )
    assert_holds(golden, shards, list(whole.chunk(golden.chips, dim=2)))
    replicas = ttnn.from_torch(
        whole, mesh_mapper=ttnn.ReplicateTensorToMesh(golden.device), **options
    )
    assert_holds(golden, replicas, [whole] * golden.chips)
    unmapped = ttnn.from_torch(whole, **options)
    assert_holds(golden, unmapped, [whole] * golden.chips)


def test_every_way_in_writes_the_same(golden, tmp_path):
    parts = [torch.full((1, 1, 32, 32), float(chip + 1)) for chip in range(golden.chips)]
    host = golden.host(parts)
    target = golden.full(9)
    ttnn.copy_host_to_device_tensor(host, target)
    ttnn.dump_tensor(str(tmp_path / "dumped.tensorbin"), host)
    for tensor in (
        target,
        host.to(golden.device),
        host.to(golden.device, ttnn.L1_MEMORY_CONFIG),
        ttnn.to_device(host, golden.device),
        ttnn.load_tensor(str(tmp_path / "dumped.tensorbin"), device=golden.device),
    ):
        assert_holds(golden, tensor, parts)


def test_a_later_transfer_does_not_change_an_earlier_one(golden):
    """Host memory stays separate: a program may write into a torch tensor after sending it."""
    for layout in (ttnn.TILE_LAYOUT, ttnn.ROW_MAJOR_LAYOUT):
        source = torch.ones(1, 1, 32, 32)
        tensor = ttnn.from_torch(source, dtype=ttnn.float32, layout=layout, device=golden.device)
        source.fill_(5)
        assert golden.holds(tensor, 1)
        golden.get(tensor)[0].fill_(6)
        assert golden.holds(tensor, 1)


@pytest.mark.parametrize("sharded", [False, True])
def test_a_cache_file_serves_the_second_start(golden, tmp_path, sharded):
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(1, 0))})
    config = ttnn.DRAM_MEMORY_CONFIG
    if sharded:
        spec = ttnn.ShardSpec(cores, (64, 32), ttnn.ShardOrientation.ROW_MAJOR)
        config = ttnn.MemoryConfig(
            ttnn.TensorMemoryLayout.WIDTH_SHARDED, ttnn.BufferType.DRAM, spec
        )

    def load(source):
        return ttnn.as_tensor(
            source, dtype=ttnn.bfloat8_b, layout=ttnn.TILE_LAYOUT, device=golden.device, cache_file_name=tmp_path / "weight",
            memory_config=config, mesh_mapper=ttnn.ShardTensorToMesh(golden.device, dim=3),
        )  # fmt: skip

    source = torch.randn(1, 1, 64, 64 * golden.chips, generator=torch.Generator().manual_seed(0))
    first = golden.get(load(source))
    files = list(tmp_path.iterdir())
    assert len(files) == 1
    second = load(
        torch.zeros_like(source)
    )  # the cached file exists already, so the new values are ignored
    assert_holds(golden, second, first)
    assert second.memory_config() == config
    for chip, shard in enumerate(source.chunk(golden.chips, dim=3)):
        assert (first[chip] - shard).abs().max() < 0.05


def test_both_dims_of_a_mesh(run_as):
    """On a 2x4 mesh, rows of the tensor go over rows of the mesh and columns over columns, and back."""
    printed = run_as(
        "T3K",
        """
import torch, ttnn

ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
mesh = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
whole = ((7 * torch.arange(64)[:, None] + 3 * torch.arange(128)) % 251).float()[None, None]

def send(dims):
    mapper = ttnn.ShardTensor2dMesh(mesh, dims=dims, mesh_shape=(2, 4))
    return ttnn.from_torch(whole, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=mapper)

def shards(tensor):
    return [ttnn.to_torch(shard).float() for shard in ttnn.get_device_tensors(tensor)]

both = send((2, 3))
wanted = [tile for row in whole.chunk(2, 2) for tile in row.chunk(4, 3)]
assert all(got.equal(want) for got, want in zip(shards(both), wanted, strict=True))
composer = ttnn.ConcatMesh2dToTensor(mesh, dims=(2, 3), mesh_shape=(2, 4))
assert ttnn.to_torch(both, mesh_composer=composer).float().equal(whole)

columns = send((None, 3))  # replicated over the mesh's rows
assert all(got.equal(want) for got, want in zip(shards(columns), 2 * list(whole.chunk(4, 3)), strict=True))
rows = send((2, None))
assert all(got.equal(want) for got, want in zip(shards(rows), [r for r in whole.chunk(2, 2) for _ in range(4)], strict=True))

added = ttnn.add(both, both)
assert ttnn.to_torch(added, mesh_composer=composer).float().equal(2 * whole)
ttnn.close_mesh_device(mesh)
print("seen")
""",
    )
    assert printed.endswith("seen\n")


def test_a_dram_sharded_matmul_refuses_an_interleaved_bias(golden):
    """The library accepts the call, and a Wormhole gives wrong values.

    The bias must be sharded like the weight.
    """
    from goldens.support import dram_sharded, sharded

    x = golden.full(1, 1, 1, 32, 128, memory_config=sharded("WIDTH", (32, 32), 4))
    weight = golden.full(1, 1, 1, 128, 768, memory_config=dram_sharded(golden.device, 128, 768))
    options = dict(
        program_config=ttnn.MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig(
            in0_block_w=1, per_core_M=1, per_core_N=2, fused_activation=None
        ),
        memory_config=ttnn.L1_WIDTH_SHARDED_MEMORY_CONFIG,
    )
    with pytest.raises(GoldenError, match="bias"):
        ttnn.linear(x, weight, bias=golden.full(2, 1, 1, 1, 768), **options)
    bias = golden.full(2, 1, 1, 1, 768, memory_config=dram_sharded(golden.device, 32, 768))
    assert golden.holds(ttnn.linear(x, weight, bias=bias, **options), 130)
    assert golden.holds(ttnn.linear(x, weight, **options), 128)


def test_to_dtype_converts_on_the_host_and_on_a_device_the_library_refuses(golden):
    """The error is the library's own, not that of an op without a golden. No golden could help."""
    host = ttnn.to_dtype(golden.host(torch.full((1, 1, 32, 32), 1.01)), ttnn.float32)
    assert host.dtype == ttnn.float32
    assert_holds(golden, host, [torch.full((1, 1, 32, 32), 1.0078125)] * golden.chips)
    with pytest.raises(RuntimeError, match="HostStorage"):
        ttnn.to_dtype(golden.full(1), ttnn.float32)


def test_a_thread_that_makes_host_tensors_hides_no_other_threads_call(golden, monkeypatch):
    """A loader packs weights ahead while the main thread sends and computes."""
    from golden_mesh import dispatch

    packing, go_on = threading.Event(), threading.Event()

    def slow(real, *args, **kwargs):
        packing.set()
        assert go_on.wait(60)
        return real(*args, **kwargs)

    x = golden.put(torch.ones(32, 32))
    monkeypatch.setitem(dispatch.HANDLERS, "ttnn.from_torch", slow)
    worker = threading.Thread(target=ttnn.from_torch, args=(torch.ones(32, 32),))
    worker.start()
    try:
        assert packing.wait(60)
        y = ttnn.neg(x)
    finally:
        go_on.set()
        worker.join()
    assert_holds(golden, y, [-torch.ones(32, 32)] * golden.chips)

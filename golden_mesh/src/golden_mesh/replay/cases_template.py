"""The distinct operations of PROGRAM, each with inputs that a seed draws, beside torch's values on a golden "SYSTEM".

Made by golden-mesh cases. Needs torch and ttnn: a card, a simulator, or golden-mesh -m pytest.
"""

import pytest
import torch
import ttnn

MESH, RING = (1, 1), False
ERROR = 0.02  # of a result's samples and of its norm; bfloat16 in a wide sum has 1e-2
SAMPLES = 32  # values of a result


@pytest.fixture(scope="module")
def device():
    if MESH != (1, 1):
        ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D_RING if RING else ttnn.FabricConfig.FABRIC_1D)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(*MESH), l1_small_size=16 << 10)
    yield mesh
    ttnn.close_mesh_device(mesh)
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)


def put(device, shape, seed, dtype, layout, memory, *, replicas=True, values=None, values_of=None, tile=None, scale=1.0,
        shift=0.0, positive=False, padding=None, empty=False):  # fmt: skip
    """A tensor [shape] on each chip: replicas, or each chip its own. values: integers; values_of: drawn from these;
    tile: repeated.
    """
    if empty:
        return ttnn.allocate_tensor_on_device(ttnn.Shape(shape), dtype, layout, device, memory)
    chips = 1 if replicas else device.get_num_devices()
    draw = torch.Generator().manual_seed(seed)
    if values is not None:
        x = torch.tensor(values, dtype=torch.int64 if dtype == ttnn.uint32 else torch.int32).reshape(chips, *shape)
    elif tile is not None:
        x = torch.tensor(tile).view(32, 32).repeat(chips, *shape[:-2], shape[-2] // 32, shape[-1] // 32)
    elif values_of is not None:
        x = torch.tensor(values_of)[torch.randint(len(values_of), (chips, *shape), generator=draw)]
    else:
        x = torch.randn(chips, *shape, generator=draw) * scale + shift
    shards = [ttnn.from_torch(each.abs() if positive else each, dtype, layout=layout, pad_value=padding) for each in x]
    whole = shards * (device.get_num_devices() // chips)
    host = whole[0] if len(whole) == 1 else ttnn.from_host_shards(whole, device.shape)
    return host if memory is None else ttnn.to_device(host, device, memory)


def semaphore(device):
    grid = device.compute_with_storage_grid_size()
    cores = ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(grid.x - 1, grid.y - 1))
    return ttnn.create_global_semaphore(device, ttnn.CoreRangeSet([cores]), 0)


def listed(result):
    """The tensors of a result, which may be nested."""
    if isinstance(result, (list, tuple)):
        return [tensor for each in result for tensor in listed(each)]
    return [result] if isinstance(result, ttnn.Tensor) else []


def samples(tensor):
    """The norm of a tensor's finite values on all chips, and values at equal distances."""
    x = torch.cat([ttnn.to_torch(shard).flatten().double() for shard in ttnn.get_device_tensors(tensor)])
    at = torch.linspace(0, len(x) - 1, min(SAMPLES, len(x))).long()
    return [float(f"{value:.5g}") for value in (x[x.isfinite()].norm(), *x[at])]


def check(tensor, expected):
    got, expected = (torch.tensor(each, dtype=torch.double) for each in (samples(tensor), expected))
    finite = expected.isfinite()
    assert got[~finite].equal(expected[~finite]) or (~got[~finite].isfinite()).all()
    got, expected = got[finite], expected[finite]
    for a, b in ((got[:1], expected[:1]), (got[1:], expected[1:])):
        assert (a - b).norm() <= ERROR * b.norm(), f"got {a.tolist()}, expected {b.tolist()}"

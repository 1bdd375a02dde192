"""Opening and closing meshes, by every function. Tensors on a closed mesh are refused, because the library crashes."""

import pytest

CLOSED = """
import torch, ttnn
from golden_mesh import GoldenError

def host(value=1.0):
    return ttnn.from_torch(torch.full((1, 1, 32, 32), value), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT)

def refused(mesh, x):
    calls = dict(
        op=lambda: ttnn.silu(x), operator=lambda: x + x, missing=lambda: ttnn.zeros((1, 1, 32, 32), device=mesh),
        read=lambda: ttnn.to_torch(x), back=lambda: x.cpu(), from_device=lambda: ttnn.from_device(x), shown=lambda:
        str(x), put=lambda: host().to(mesh), to_device=lambda: ttnn.to_device(host(), mesh), made=lambda: ttnn.Tensor(
        torch.ones(2, 2), ttnn.float32, mesh), from_torch=lambda: ttnn.from_torch(torch.ones(2, 2), device=mesh),
        empty=lambda: ttnn.empty((2, 2), ttnn.bfloat16, ttnn.ROW_MAJOR_LAYOUT, mesh, ttnn.DRAM_MEMORY_CONFIG),
        like=lambda: ttnn.empty_like(x), layout=lambda: x.to(ttnn.ROW_MAJOR_LAYOUT), into=lambda:
        ttnn.copy_host_to_device_tensor(host(), x), out=lambda: ttnn.copy_device_to_host_tensor(x, host()),
    )
    for name, call in calls.items():
        try:
            call()
        except GoldenError as error:
            assert "is closed" in str(error), (name, error)
        else:
            raise SystemExit(f"{name} was not refused")

whole = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
left, right = whole.create_submeshes(ttnn.MeshShape(1, 1))
a, b, c = host().to(whole), host().to(left), host(2.0).to(right)
assert b.buffer_address() == c.buffer_address()
assert [ttnn.to_torch(ttnn.add(x, x)).unique().tolist() for x in (b, c)] == [[2], [4]]
ttnn.close_mesh_device(left)
refused(left, b)
assert ttnn.to_torch(ttnn.add(c, c)).unique().tolist() == [4]
ttnn.close_mesh_device(right)
ttnn.close_mesh_device(whole)
refused(whole, a)

again = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))  # the same chips
x = host().to(again)
refused(whole, a)
refused(right, c)
assert ttnn.get_device_tensors(ttnn.add(x, x))[1].to_torch().unique().tolist() == [2]
ttnn.close_mesh_device(again)
ttnn.deallocate(a)  # as in the library: nothing is left to free
b.deallocate()
print("seen")
"""
# A mesh whose parent is closed is closed.
PARENT = """
import torch, ttnn
from golden_mesh import GoldenError

whole = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
part, _ = whole.create_submeshes(ttnn.MeshShape(1, 1))
x = ttnn.from_torch(torch.ones(2, 2), device=part)
ttnn.close_mesh_device(whole)
for _ in range(2):
    try:
        ttnn.to_torch(x)
        raise SystemExit("a tensor of a closed mesh was read")
    except GoldenError as error:
        assert "is closed" in str(error), error
    again = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))  # of the same chips, which is no parent of it
print("seen")
"""
# Each function opens a chip that computes. Closing forgets the chip's values. Worker dispatch leaves the expected grid.
OPENED = """
import torch, ttnn
from golden_mesh import host_bytes

workers = ttnn.DispatchCoreConfig(ttnn.DispatchCoreType.WORKER)

def works(device, rows=8):
    grid = device.compute_with_storage_grid_size()
    assert (grid.x, grid.y) == (8, rows), grid
    x = ttnn.from_torch(torch.ones(1, 1, 32 * 8 * rows, 32), layout=ttnn.TILE_LAYOUT, device=device)
    assert ttnn.to_torch(ttnn.add(x, x)).unique().tolist() == [2]
    trace = ttnn.begin_trace_capture(device, cq_id=0)
    ttnn.end_trace_capture(device, trace, cq_id=0)

region = dict(trace_region_size=1 << 20)
device = ttnn.open_device(device_id=0, **region); works(device); ttnn.close_device(device)
assert host_bytes() == 0
device = ttnn.open_device(device_id=0, dispatch_core_config=workers, **region); works(device, 7)
ttnn.close_device(device)
device = ttnn.CreateDevice(0, 1, 0, 1 << 20); works(device); ttnn.CloseDevice(device)
device = ttnn.CreateDevice(0, dispatch_core_config=workers, **region); works(device, 7); ttnn.CloseDevice(device)
devices = ttnn.CreateDevices([0, 1], 1, 0, 1 << 20); works(devices[0]); works(devices[1]); ttnn.CloseDevices(devices)
with ttnn.create_mesh_device(ttnn.MeshShape(1, 2), **region) as mesh: assert mesh.get_num_devices() == 2
with ttnn.manage_device(device_id=0) as device: ttnn.to_torch(ttnn.zeros((1, 1, 32, 32), device=device))
assert host_bytes() == 0
print("seen")
"""


@pytest.mark.parametrize("program", [CLOSED, PARENT, OPENED], ids=["closed", "closed with their parent", "opened"])
def test_meshes_that_are(run_as, program):
    assert "seen\n" in run_as("N300", program)  # the library prints at the end of some


POINT_TO_POINT = """
import torch, ttnn
ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
device = ttnn.open_mesh_device(ttnn.MeshShape(*{shape}))
x = torch.arange(32 * 32 * {shape}[1]).reshape({shape}[1], 1, 32, 32).bfloat16()
t = ttnn.from_torch(x, layout=ttnn.TILE_LAYOUT, device=device, mesh_mapper=ttnn.ShardTensorToMesh(device, dim=0))
got = ttnn.point_to_point(t, ttnn.MeshCoordinate(0, 0), ttnn.MeshCoordinate(0, 3), topology=ttnn.Topology.Linear)
print(ttnn.to_torch(ttnn.get_device_tensors(got)[3]).equal(x[:1]))
"""


@pytest.mark.parametrize("system, shape", [("N150x4", (1, 4)), ("T3K", (1, 8))])
def test_a_program_on_two_of_many_chips(run_as, system, shape):
    """A mock of more chips than the program's ends in a segmentation fault."""
    assert "True\n" in run_as(system, POINT_TO_POINT.format(shape=shape))

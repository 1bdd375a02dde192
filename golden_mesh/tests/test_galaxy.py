"""A golden Galaxy: 32 chips, whose collectives sum along rows and columns."""

from collections import Counter

from golden_mesh.systems import SYSTEMS, named

PROGRAM = """
import torch, ttnn

def sums_are_right(mesh):
    # The chip at (row, column) holds 10 * row + column.
    rows, columns = mesh.shape
    values = (10 * torch.arange(rows)[:, None] + torch.arange(columns)).float()
    shards = values.reshape(-1, 1, 1, 1).repeat(1, 1, 32, 256)
    x = ttnn.from_torch(shards, dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, device=mesh,
                        mesh_mapper=ttnn.ShardTensorToMesh(mesh, dim=0))
    for axis in (0, 1):
        parts = ttnn.reduce_scatter(x, dim=3, cluster_axis=axis, topology=ttnn.Topology.Ring)
        whole = ttnn.all_gather(parts, dim=3, cluster_axis=axis, topology=ttnn.Topology.Ring)
        expected = values.sum(axis, keepdim=True).expand(rows, columns).reshape(-1)
        for tensor, width in ((parts, 256 // mesh.shape[axis]), (whole, 256)):
            got = [ttnn.to_torch(shard) for shard in ttnn.get_device_tensors(tensor)]
            assert all(g.shape[3] == width and (g == e).all() for g, e in zip(got, expected)), (axis, width)

ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D_RING)
mesh = ttnn.open_mesh_device(ttnn.MeshShape(4, 8), trace_region_size=1 << 20)
sums_are_right(mesh)

rows = mesh.create_submeshes(ttnn.MeshShape(1, 8))
print(len(rows), sorted(chip for row in rows for chip in row.get_device_ids()) == list(range(32)))
for row in rows:
    ttnn.close_mesh_device(row)
one = ttnn.from_torch(torch.ones(32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)
def summed():
    return ttnn.all_reduce(one, cluster_axis=0, topology=ttnn.Topology.Ring)

summed()
trace = ttnn.begin_trace_capture(mesh, cq_id=0)
total = summed()
ttnn.end_trace_capture(mesh, trace, cq_id=0)
twos = ttnn.from_torch(torch.full((32, 32), 2.0), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT)
ttnn.copy_host_to_device_tensor(twos, one)
ttnn.execute_trace(mesh, trace, cq_id=0)
print([ttnn.to_torch(shard)[0, 0].item() for shard in ttnn.get_device_tensors(total)] == [8.0] * 32)
grid = mesh.compute_with_storage_grid_size()
shards = ttnn.create_sharded_memory_config(
    (32, 32), ttnn.CoreGrid(x=grid.x, y=grid.y), ttnn.ShardStrategy.HEIGHT, use_height_and_width_as_shard_shape=True)
x = ttnn.full((1, 1, 32 * grid.x * grid.y, 32), 1.0, layout=ttnn.TILE_LAYOUT, device=mesh, memory_config=shards)
print(grid, ttnn.silu(x).memory_config().shard_spec.grid.num_cores())
ttnn.close_mesh_device(mesh)
"""


def test_a_galaxy_opens_sums_along_both_axes_and_replays_a_trace(run_as):
    assert run_as("GALAXY", PROGRAM).splitlines() == ["4 True", "True", "8-9 72"]


def test_four_links_join_each_chip_of_a_galaxy_to_each_of_four_others():
    galaxy = SYSTEMS["GALAXY"]
    cables = Counter(tuple(sorted((a, b))) for (a, _), (b, _) in galaxy.links)
    assert set(cables.values()) == {4} and len(cables) == 2 * 32
    assert Counter(chip for pair in cables for chip in pair) == {chip: 4 for chip in range(32)}
    assert galaxy.mmio_chips == tuple(range(32))


def test_the_name_that_tt_metals_tests_give_a_galaxy_is_known():
    assert named("TG") == named("galaxy") == "GALAXY"

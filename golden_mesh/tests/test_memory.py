"""Golden memory behaves as a chip's. A read depends on the address. A read of a lost value is an error that
names it.
"""

from collections import namedtuple

import pytest
import torch
import ttnn

import golden_mesh
from golden_mesh.errors import GoldenError
from golden_mesh.memory import GoldenMemory, Slot

Named = namedtuple("Named", "name")  # stands for an enumerator of ttnn
BFLOAT16, DRAM, L1 = map(Named, ("BFLOAT16", "DRAM", "L1"))


def slot(address, size=64, shape=(4, 8), devices=(0, 1), buffer_type=DRAM) -> Slot:
    return Slot(
        devices, tuple((0, d) for d in devices), buffer_type, address, size, shape, BFLOAT16
    )


def ones(*shape, times=1.0):
    return torch.full(shape or (4, 8), times)


class TestAddresses:
    """GoldenMemory alone."""

    @pytest.mark.parametrize(
        "address, extent, evicts",
        [(0, 64, False), (36, 64, False), (0, 101, True), (37, 64, True), (101, 8, True), (120, 1, True), (128, 64, True),
         (191, 64, True), (192, 64, False), (0, 1024, True)],
    )  # fmt: skip
    def test_an_allocation_evicts_what_it_overlaps_and_nothing_else(self, address, extent, evicts):
        memory, old, new = GoldenMemory(), slot(100, 92), slot(address, extent)
        memory.write(old, [ones(), ones()])
        memory.write(new, [ones(times=2), ones(times=2)])
        assert memory.read(new)[1].equal(ones(times=2))
        if evicts:
            with pytest.raises(GoldenError, match="chip 0.*DRAM address 0x64"):
                memory.read(old)
        else:
            assert memory.read(old)[1].equal(ones())

    def test_one_allocation_evicts_all_that_it_overlaps(self):
        memory = GoldenMemory()
        many = [slot(64 * i) for i in range(8)]
        for each in many:
            memory.write(each, [ones(), ones()])
        memory.write(slot(96, 192), [ones(), ones()])
        gone = []
        for i, each in enumerate(many):
            try:
                memory.read(each)
            except GoldenError:
                gone.append(i)
        assert gone == [1, 2, 3, 4]

    def test_chips_and_buffer_types_are_apart(self):
        memory = GoldenMemory()
        for times, place in enumerate(
            [slot(0, devices=(0,)), slot(0, devices=(1,)), slot(0, devices=(0,), buffer_type=L1)]
        ):
            memory.write(place, [ones(times=times)])
        assert memory.read(slot(0))[1].equal(ones(times=1)) and memory.read(slot(0))[0].equal(
            ones(times=0)
        )

    def test_a_view_may_cut_off_rows_of_every_tile(self):
        memory, value = GoldenMemory(), torch.arange(2 * 64 * 8.0).view(2, 64, 8)
        memory.write(slot(0, shape=(2, 64, 8)), [value, value])
        assert memory.read(slot(0, shape=(4, 7, 8)))[0].equal(value.view(4, 32, 8)[:, :7])

    def test_a_view_must_keep_its_elements_or_cut_off_rows(self):
        memory, value = GoldenMemory(), torch.arange(64.0).view(2, 4, 8)
        memory.write(slot(0, shape=(2, 4, 8)), [value, value])
        assert memory.read(slot(0, shape=(8, 8)))[0].equal(value.view(8, 8))
        assert memory.read(slot(0, shape=(2, 3, 8)))[0].equal(value[:, :3])
        for shape in ((2, 5, 8), (2, 4, 7), (3, 3, 8)):
            with pytest.raises(GoldenError, match="0x0"):
                memory.read(slot(0, shape=shape))

    def test_a_write_in_place_changes_only_tensors_at_the_same_address(self):
        memory, shared = GoldenMemory(), ones()
        memory.write(slot(0), [shared, shared])  # replicas
        memory.write(
            slot(64), [shared, shared]
        )  # an op moved the data: one torch tensor in two places
        memory.exclusive(slot(0), [0, 1]).fill_(7)
        assert memory.read(slot(0))[0] is memory.read(slot(0))[1], "replicas stay one tensor"
        assert memory.read(slot(0))[1].equal(ones(times=7)) and memory.read(slot(64))[0].equal(
            ones()
        )

    def test_a_write_in_place_on_one_chip_leaves_its_replica(self):
        memory, shared = GoldenMemory(), ones()
        memory.write(slot(0), [shared, shared])
        memory.exclusive(slot(0), [1]).fill_(7)
        assert memory.read(slot(0))[0].equal(ones()) and memory.read(slot(0))[1].equal(
            ones(times=7)
        )

    def test_host_bytes_count_a_shared_tensor_once_and_forget_what_is_gone(self):
        memory, shared = GoldenMemory(), ones()
        memory.write(slot(0), [shared, shared])
        memory.write(slot(64), [shared.view(8, 4), ones()])
        assert memory.host_bytes() == 2 * 4 * 32
        memory.free(slot(64))
        assert memory.host_bytes() == 4 * 32
        memory.forget_devices([0, 1])
        assert memory.host_bytes() == 0


def test_a_freed_tensor_is_refused(golden):
    x = golden.full(1)
    ttnn.deallocate(x)
    for use in (golden.get, ttnn.relu):
        with pytest.raises(RuntimeError, match="not allocated"):
            use(x)


def test_reused_memory_belongs_to_the_new_tensor(golden):
    x = golden.full(1)
    address = x.buffer_address()
    ttnn.deallocate(x)
    y = golden.full(2)
    assert y.buffer_address() == address and golden.holds(y, 2)


def test_views_read_the_memory_of_their_base(golden):
    base = torch.arange(64 * 32).view(1, 1, 64, 32) % 256
    x = golden.put(base.float())
    halves, rows = ttnn.reshape(x, (1, 2, 32, 32)), ttnn.reshape(x, (1, 1, 60, 32), (1, 1, 64, 32))
    assert x.buffer_address() == halves.buffer_address() == rows.buffer_address()
    for factor in (1, 2):
        ttnn.copy_host_to_device_tensor(golden.host(factor * base.float()), x)
        for got in golden.get(halves):
            assert got.equal((factor * base).view(1, 2, 32, 32).bfloat16())
        for got in golden.get(rows):
            assert got.equal((factor * base)[:, :, :60].bfloat16())


def test_an_op_in_place_changes_its_tensor_and_no_copy_of_it(golden):
    ints = dict(dtype=ttnn.int32, layout=ttnn.ROW_MAJOR_LAYOUT)
    x = golden.full(5, 1, 32, **ints)
    copies = [
        ttnn.clone(x),
        ttnn.to_memory_config(x, ttnn.L1_MEMORY_CONFIG),
        golden.full(5, 1, 32, **ints),
    ]
    view = ttnn.reshape(x, (1, 1, 1, 32))
    assert view.buffer_address() == x.buffer_address()
    ttnn.plus_one(x)
    assert golden.holds(x, 6) and golden.holds(view, 6)
    assert all(golden.holds(copy, 5) for copy in copies)


def test_replicas_stay_one_tensor_through_ops(golden):
    from golden_mesh.dispatch import slot_of
    from golden_mesh.steps import memory

    replicas, shards = (
        golden.full(1),
        golden.put([torch.rand(1, 1, 32, 32) for _ in range(golden.chips)]),
    )
    for tensor, different in (
        (ttnn.add(replicas, replicas), 1),
        (ttnn.add(shards, replicas), golden.chips),
    ):
        assert len({id(value) for value in memory.read(slot_of(tensor))}) == different


def test_a_deallocation_frees_the_hosts_memory_too(golden):
    x = golden.put([torch.rand(1, 1, 256, 256) for _ in range(golden.chips)])
    before = golden_mesh.host_bytes()
    ttnn.deallocate(x)
    assert before - golden_mesh.host_bytes() == golden.chips * 256 * 256 * 2


def test_memory_stays_bounded_over_a_long_loop(golden):
    x = golden.put([torch.zeros(1, 1, 128, 128)] * golden.chips)
    before = golden_mesh.host_bytes()
    most = 0
    for _ in range(200):
        x = ttnn.add(x, 1.0)  # the test deallocates nothing
        most = max(most, golden_mesh.host_bytes())
    assert golden.holds(x, 200)
    assert most - before <= 4 * golden.chips * 128 * 128 * 2


def test_a_mesh_that_was_closed_is_forgotten(run_as):
    printed = run_as(
        "N300",
        """
import torch, ttnn
from golden_mesh import host_bytes

for number in range(3):
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 2 if number < 2 else 1)) as mesh:
        assert host_bytes() == 0, "what another mesh held is there"
        empty = ttnn.empty((1, 1, 32, 32), ttnn.bfloat16, ttnn.TILE_LAYOUT, mesh, ttnn.DRAM_MEMORY_CONFIG)
        try:
            ttnn.to_torch(empty, mesh_composer=ttnn.ConcatMeshToTensor(mesh, dim=0))
            raise SystemExit("the memory of the mesh before was read")
        except Exception as error:
            assert "never written" in str(error), error
        x = ttnn.from_torch(torch.ones(1, 1, 32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)
        assert host_bytes() == 2048, "replicas are one tensor"
assert host_bytes() == 0
print("seen")
""",
    )
    assert printed.endswith("seen\n")


def test_submeshes_compute_and_allocate_independently(run_as):
    printed = run_as(
        "N300",
        """
import torch, ttnn

def put(value, mesh):
    return ttnn.from_torch(torch.full((1, 1, 32, 32), value), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)

with ttnn.create_mesh_device(ttnn.MeshShape(1, 2)) as whole:
    left, right = whole.create_submeshes(ttnn.MeshShape(1, 1))
    a, b = put(1.0, left), put(2.0, right)
    assert a.buffer_address() == b.buffer_address()
    c, d = ttnn.add(a, a), ttnn.add(b, b)
    print([float(ttnn.to_torch(x).mean()) for x in (a, b, c, d)])
    ttnn.deallocate(a)
    print(float(ttnn.to_torch(b).mean()))
    ttnn.close_mesh_device(left)
    ttnn.close_mesh_device(right)
""",
    )
    assert printed.splitlines()[-2:] == ["[1.0, 2.0, 2.0, 4.0]", "2.0"]

"""Collectives of shards that differ by chip: the result on each chip."""

import pytest
import torch
import ttnn

from golden_mesh.arithmetic import engine
from golden_mesh.errors import GoldenError
from golden_mesh.goldens.collectives import parts_of_sum
from golden_mesh.registry import GOLDENS
from goldens.support import assert_close, assert_same, cores, sharded

pytestmark = pytest.mark.usefixtures("several_chips")


@pytest.mark.parametrize("axis", (None, 1))
def test_all_reduce_gives_every_chip_the_sum(chips, axis):
    x = chips.draw(1, 1, 32, 96)
    assert_close(ttnn.all_reduce(chips.put(x), cluster_axis=axis), sum(x), steps=chips.count - 1)


@pytest.mark.parametrize("dim", (0, 1, 2, 3, -1))
def test_all_gather_joins_shards_in_the_order_of_chips(chips, dim):
    x = chips.draw(1, 1, 32, 64)
    assert_same(ttnn.all_gather(chips.put(x), dim, cluster_axis=1), torch.cat(x, dim))


def test_all_gather_of_odd_shards(chips):
    x = chips.draw(1, 1, 33, 45)
    assert_same(ttnn.all_gather(chips.put(x), dim=3), torch.cat(x, 3))


@pytest.mark.parametrize("dim", (2, 3))
def test_reduce_scatter_gives_each_chip_its_part_of_the_sum(chips, dim):
    x = chips.draw(1, 1, 32 * chips.count, 64 * chips.count)
    got = ttnn.reduce_scatter(chips.put(x), dim, cluster_axis=1)
    assert_close(got, list(sum(x).chunk(chips.count, dim)), steps=chips.count - 1)


@pytest.mark.parametrize(
    "way, error, gain",
    [
        ({}, (3.4e-3, 4.4e-3), (1.0018, 1.0029)),
        ({"ring": True}, (2.9e-3, 3.3e-3), (1.0011, 1.0016)),
        ({"at_once": True}, (1.8e-3, 2.9e-3), (1.0004, 1.0012)),
    ],
    ids=("line", "ring", "at once"),
)
def test_a_sum_over_eight_chips_is_as_far_off_as_on_simulated_chips(way, error, gain):
    """Summands of 0.1 to 10 times each other's size."""
    draw = torch.Generator().manual_seed(0)
    sizes = 0.1 * 10 ** (2 * torch.rand(8, generator=draw))
    x = [(size * torch.randn(1, 1, 32, 3584, generator=draw)).bfloat16() for size in sizes]
    want = sum(shard.double() for shard in x)
    got = torch.cat(parts_of_sum(x, -1, **way), -1).double()
    assert error[0] < (got - want).norm() / want.norm() < error[1]
    assert gain[0] < (got * want).sum() / (want * want).sum() < gain[1]


def test_a_scattered_and_gathered_sum_is_the_sum(chips):
    x = chips.draw(1, 1, 32, 64 * chips.count)
    got = ttnn.all_gather(ttnn.reduce_scatter(chips.put(x), 3), 3)
    assert_close(got, sum(x), steps=chips.count - 1)


def test_mesh_partition_undoes_a_gather(chips):
    x = chips.draw(1, 1, 32, 64)
    gathered = ttnn.all_gather(chips.put(x), 3)
    assert_same(ttnn.mesh_partition(gathered, 3, 1), x)


def semaphores(chips, count):
    return [ttnn.create_global_semaphore(chips.device, cores(64), 0) for _ in range(count)]


def test_all_reduce_async_through_a_buffer_that_was_never_written(chips):
    """The decode all-reduce, with width-sharded tensors and a buffer of any contents."""
    x = chips.draw(1, 1, 32, 256)
    config = sharded("WIDTH", (32, 64), 4)
    scratch = ttnn.empty(
        (1, 1, 32, 256 * chips.count),
        ttnn.bfloat16,
        ttnn.TILE_LAYOUT,
        chips.device,
        sharded("WIDTH", (32, 64 * chips.count), 4),
    )
    got = ttnn.experimental.all_reduce_async(
        chips.put(x, memory_config=config),
        scratch,
        cluster_axis=1,
        mesh_device=chips.device,
        multi_device_global_semaphore=semaphores(chips, 1)[0],
        memory_config=config,
        topology=ttnn.Topology.Linear,
        num_links=1,
    )
    assert_close(got, sum(x), steps=chips.count - 1)


def test_all_reduce_async_without_a_buffer(chips):
    x = chips.draw(1, 1, 32, 64 * chips.count)
    got = ttnn.experimental.all_reduce_async(
        chips.put(x),
        cluster_axis=1,
        mesh_device=chips.device,
        barrier_semaphores=semaphores(chips, 2),
        rs_global_semaphores=semaphores(chips, 3),
        ag_global_semaphores=semaphores(chips, 2),
        math_op=ttnn.ReduceType.Sum,
        topology=ttnn.Topology.Linear,
        num_links=1,
    )
    assert_close(got, sum(x), steps=chips.count - 1)


def test_all_reduce_async_for_a_number_of_devices(chips):
    x = chips.draw(1, 1, 32, 64 * chips.count)
    got = ttnn.experimental.all_reduce_async(
        chips.put(x),
        num_devices=chips.count,
        barrier_semaphores=semaphores(chips, 2),
        rs_global_semaphores=semaphores(chips, 3),
        ag_global_semaphores=semaphores(chips, 2),
        math_op=ttnn.ReduceType.Sum,
        num_links=1,
    )
    assert_close(got, sum(x), steps=chips.count - 1)


def test_all_gather_async(chips):
    x = chips.draw(1, 1, 32, 64)
    got = ttnn.experimental.all_gather_async(
        chips.put(x),
        dim=3,
        multi_device_global_semaphore=semaphores(chips, 2),
        num_links=1,
        topology=ttnn.Topology.Linear,
    )
    assert_same(got, torch.cat(x, 3))


def test_all_gather_async_along_an_axis_by_position(chips):
    x = chips.draw(1, 1, 32, 64)
    got = ttnn.experimental.all_gather_async(
        chips.put(x), 3, 1, chips.device, ttnn.Topology.Linear, semaphores(chips, 2), num_links=1
    )
    assert_same(got, torch.cat(x, 3))


def test_reduce_scatter_minimal_async(chips):
    x = chips.draw(1, 1, 32, 64 * chips.count)
    got = ttnn.experimental.reduce_scatter_minimal_async(
        chips.put(x),
        dim=3,
        multi_device_global_semaphore=semaphores(chips, 3),
        barrier_semaphore=semaphores(chips, 1)[0],
        num_links=1,
        topology=ttnn.Topology.Linear,
    )
    assert_close(got, list(sum(x).chunk(chips.count, 3)), steps=chips.count - 1)


def test_a_reduction_other_than_the_sum_is_refused(chips):
    with pytest.raises((GoldenError, RuntimeError)):
        ttnn.experimental.all_reduce_async(
            chips.put(chips.draw(1, 1, 32, 64)),
            cluster_axis=1,
            mesh_device=chips.device,
            barrier_semaphores=semaphores(chips, 2),
            rs_global_semaphores=semaphores(chips, 3),
            ag_global_semaphores=semaphores(chips, 2),
            math_op=ttnn.ReduceType.Max,
            num_links=1,
        )


def test_dest_and_a_pair_are_rounded_to_a_common_power_of_two():
    """To 2**-10 of it. Ties of a pair go up: 3.5 of these steps become 4, and -3.5 become -3."""
    pair = torch.tensor([3.5, -3.5, 3.5]).mul(2**-10).bfloat16()
    dest = torch.tensor([1.0, -1, 2])
    got = engine.add_to_bfloat16_dest(dest, pair, torch.zeros(3))
    assert got.tolist() == [1 + 2**-7, -1, 2]


def test_a_float32_dest_keeps_small_partial_sums():
    """A bfloat16 dest loses each of them: a pair is smaller than half a unit in the last place."""
    small = 0.75 * 2**-9
    shards = [torch.tensor([value]).bfloat16() for value in (1.0, *[small] * 7)]
    op = GOLDENS["ttnn.experimental.all_reduce_async"].function
    assert op(shards)[0].item() == 1
    assert op(shards, fp32_dest_acc=True)[0].item() == pytest.approx(1 + 7 * small, abs=1e-6)


def test_all_broadcast_gives_every_chip_all_tensors(chips, several_chips):
    values = chips.draw(1, 1, 32, 64)
    got = ttnn.all_broadcast(chips.put(values))
    assert len(got) == chips.count
    for tensor, value in zip(got, values):
        assert_same(tensor, value)


def test_tokens_by_each_chips_experts(chips):
    """Eight experts, two or more a chip: scores of the selected ones, and the chunks of 16 tokens that need them."""
    count, experts = chips.count, 8
    scores, chosen = (
        torch.rand(1, 1, 32, experts).bfloat16(),
        torch.randint(0, experts, (1, 1, 32, 2)),
    )
    chosen[:, :, 16:] = 0  # the second chunk needs expert 0 only
    home = torch.arange(experts) * count // experts
    mapping = (home[:, None] == torch.arange(count)).int()[None, None]
    rows = ttnn.ROW_MAJOR_LAYOUT
    masked, needed = ttnn.moe_expert_token_remap(
        chips.put(scores, layout=rows), chips.put(mapping, ttnn.uint16, rows),
        chips.put(chosen.int(), ttnn.uint16, rows), reduction_size=16,
    )  # fmt: skip
    for chip, (got, chunks) in enumerate(zip(chips.get(masked), chips.get(needed))):
        mine = [e for e in range(experts) if home[e] == chip]
        for token in range(32):
            for column, expert in enumerate(mine):
                selected = expert in chosen[0, 0, token].tolist()
                assert got[0, 0, token, column] == (scores[0, 0, token, expert] if selected else 0)
        assert chunks.flatten()[len(mine) :].tolist() == [int(e == 0) for e in mine]


def test_all_to_all_shards_along_the_other_dimension(chips, several_chips):
    values = chips.draw(1, 1, 32 * chips.count, 64 * chips.count)
    got = ttnn.experimental.all_to_all_async_generic(
        chips.put(values), 2, 3, topology=ttnn.Topology.Linear, cluster_axis=1
    )
    assert_same(got, list(torch.cat(values, 2).chunk(chips.count, 3)))


def test_a_reversed_all_gather_begins_with_the_last_chip(chips, several_chips):
    values = chips.draw(1, 1, 32, 64 * chips.count)
    line = [ttnn.create_global_semaphore(chips.device, cores(64), 0) for _ in range(2)]
    got = ttnn.experimental.all_gather_async_reversed(
        chips.put(values), dim=3, multi_device_global_semaphore=line, topology=ttnn.Topology.Linear
    )
    assert_same(got, torch.cat(values[::-1], 3))


def test_broadcast_gives_every_chip_the_senders_tensor(chips, several_chips):
    values, last = chips.draw(1, 1, 32, 64), chips.count - 1
    got = ttnn.broadcast(chips.put(values), ttnn.MeshCoordinate((0, last)))
    assert_same(got, values[last])

"""Collectives of shards that differ by chip: the result on each chip."""

import pytest
import torch
import ttnn

from golden_mesh.arithmetic import engine
from golden_mesh.errors import GoldenError
from golden_mesh.goldens.collectives import parts_of_sum
from golden_mesh.mesh.memory import Slot
from golden_mesh.mesh.steps import Step, memory, run
from golden_mesh.registry import GOLDENS
from goldens.support import ROW_MAJOR, assert_close, assert_same, block_sharded, sharded

E, LINE, RING = ttnn.experimental, ttnn.Topology.Linear, ttnn.Topology.Ring
TILES, SQUARE = (1, 1, 32, 64), "a tile of rows and two of columns for each chip"
SEMAPHORES = "multi_device_global_semaphore"
several = pytest.mark.usefixtures("several_chips")


def gathered(x, dim=3):
    return torch.cat(x, dim)


def parts(x, dim=3):
    """Each chip's part of the sum."""
    return list(sum(x).chunk(len(x), dim))


# The call of x -> what torch makes of the list of all chips' values (a tensor for all chips, or a list), x's shape.
# count: of chips. two, TWO and THREE: semaphores. STAGES: those of an all-reduce of two stages.
MOVES = {
    "ttnn.all_gather(x, dim=3)": (gathered, (1, 1, 33, 45)),
    "ttnn.mesh_partition(ttnn.all_gather(x, 3), 3, 1)": (lambda x: x, TILES),
    "E.all_gather_async(x, dim=3, topology=LINE, **TWO)": (gathered, TILES),
    "E.all_gather_async(x, 3, 1, mesh, LINE, two, num_links=1)": (gathered, TILES),
    # Of rows or along a dim that tiles pad, by broadcasts: it needs no ring (test_hazards.py).
    "E.all_gather_async(ttnn.to_layout(x, ROW_MAJOR), 3, topology=RING, **TWO)": (gathered, (1, 1, 8, 64)),
    "E.all_gather_async(x, 3, topology=RING, **TWO)": (gathered, (1, 1, 32, 40)),
    "E.all_gather_async_reversed(x, dim=3, topology=LINE, **TWO)": (lambda x: gathered(x[::-1]), SQUARE),
    "E.all_to_all_async_generic(x, 2, 3, topology=LINE, cluster_axis=1)":
        (lambda x: list(gathered(x, 2).chunk(len(x), 3)), SQUARE),
    "ttnn.broadcast(x, ttnn.MeshCoordinate((0, count - 1)))": (lambda x: x[-1], TILES),
}  # fmt: skip
for at in (0, -1):
    MOVES[f"ttnn.all_broadcast(x)[{at}]"] = lambda x, at=at: x[at], TILES
for dim in (0, 1, 2, 3, -1):
    MOVES[f"ttnn.all_gather(x, {dim}, cluster_axis=1)"] = lambda x, dim=dim: gathered(x, dim), TILES
SUMS = {
    "ttnn.all_reduce(x, cluster_axis=1)": (sum, (1, 1, 32, 96)),
    "ttnn.all_reduce(x)": (sum, (1, 1, 5, 1)),  # narrower than the line of chips: row statistics
    "ttnn.all_reduce(input_tensor=x)": (sum, (2, 3, 35)),  # no multiple of their number
    "ttnn.reduce_scatter(x, 2, cluster_axis=1)": (lambda x: parts(x, 2), SQUARE),
    "ttnn.reduce_scatter(x, 3, cluster_axis=1)": (parts, SQUARE),
    "ttnn.all_gather(ttnn.reduce_scatter(x, 3), 3)": (sum, SQUARE),
    "ttnn.reduce_scatter(placed(x, IN_COLUMNS), 3, cluster_axis=1)": (parts, (1, 1, 32, 3584)),
    # Blocks with a memory config of the parts: without it they lie otherwise (test_hazards.py).
    "ttnn.reduce_scatter(placed(x, blocks(count, count)), 3, cluster_axis=1, memory_config=blocks(1, count))":
        (parts, SQUARE),
    "E.reduce_scatter_minimal_async(x, dim=3, topology=LINE, **THREE)": (parts, SQUARE),
    "E.all_reduce_async(x, cluster_axis=1, mesh_device=mesh, math_op=ADD, **STAGES)": (sum, SQUARE),
    "E.all_reduce_async(x, num_devices=count, math_op=ADD, **STAGES)": (sum, SQUARE),
}  # fmt: skip
ADD, MAX = ttnn.ReduceType.Sum, ttnn.ReduceType.Max
IN_COLUMNS, placed = sharded("WIDTH", (32, 128), 28), ttnn.to_memory_config


def blocks(tiles: int, rows: int) -> ttnn.MemoryConfig:
    """Blocks of a tile of rows and so many of columns, on two columns of cores."""
    return block_sharded((32, 32 * tiles), 2, rows)


def call_of(chips, call: str, shape) -> tuple[list[torch.Tensor], object]:
    """Return (each chip's values of x, the result of the call)."""
    values = chips.draw(*((1, 1, 32 * chips.count, 64 * chips.count) if shape == SQUARE else shape))
    two, three = chips.semaphores(2), chips.semaphores(3)
    stages = dict(
        num_links=1, barrier_semaphores=chips.semaphores(2), rs_global_semaphores=three, ag_global_semaphores=two
    )
    names = dict(x=chips.put(values), mesh=chips.device, count=chips.count, two=two, STAGES=stages)
    names |= dict(TWO={SEMAPHORES: two}, THREE={SEMAPHORES: three})
    return values, eval(call, globals(), names)


@several
@pytest.mark.parametrize("call", MOVES)
def test_shards_move(chips, call):
    want, shape = MOVES[call]
    values, got = call_of(chips, call, shape)
    assert_same(got, want(values))


@several
@pytest.mark.parametrize("call", SUMS)
def test_shards_are_added(chips, call):
    want, shape = SUMS[call]
    values, got = call_of(chips, call, shape)
    assert_close(got, want(values), steps=chips.count - 1)


@several
def test_all_reduce_async_through_a_buffer_that_was_never_written(chips):
    """The decode all-reduce, with width-sharded tensors and a buffer of any contents."""
    x, place = chips.draw(1, 1, 32, 256), sharded("WIDTH", (32, 64), 4)
    wide = sharded("WIDTH", (32, 64 * chips.count), 4)
    shape = (1, 1, 32, 256 * chips.count)
    scratch = ttnn.empty(shape, ttnn.bfloat16, ttnn.TILE_LAYOUT, chips.device, wide)
    got = E.all_reduce_async(
        chips.put(x, memory_config=place), scratch, cluster_axis=1, mesh_device=chips.device,
        multi_device_global_semaphore=chips.semaphores(1)[0], memory_config=place, topology=LINE, num_links=1,
    )  # fmt: skip
    assert_close(got, sum(x), steps=chips.count - 1)


@several
def test_a_reduction_other_than_the_sum_is_refused(chips):
    call = "E.all_reduce_async(x, cluster_axis=1, mesh_device=mesh, math_op=MAX, **STAGES)"
    with pytest.raises((GoldenError, RuntimeError)):
        call_of(chips, call, TILES)


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


@pytest.mark.parametrize("way, fewest", [({}, 2), ({"ring": True}, 3), ({"at_once": True}, 3)], ids=str)
def test_each_shard_is_added_once_to_each_part(way, fewest):
    """Powers of two, whose sums in bfloat16 are exact. There are more parts than columns, or parts of two sizes."""
    for count, columns in ((count, columns) for count in range(fewest, 9) for columns in (1, 2 * count + 1)):
        shards = [torch.full((1, 1, 3, columns), 2.0**chip).bfloat16() for chip in range(count)]
        parts = parts_of_sum(shards, -1, **way)
        assert [part.shape[-1] for part in parts] == [part.shape[-1] for part in shards[0].tensor_split(count, -1)]
        assert (torch.cat(parts, -1) == 2**count - 1).all()


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
    assert op(shards, None, False)[0].item() == 1
    assert op(shards, None, True)[0].item() == pytest.approx(1 + 7 * small, abs=1e-6)


@several
def test_tokens_by_each_chips_experts(chips):
    """Of eight experts: scores of the selected ones, and the chunks of 16 tokens that need them."""
    scores, chosen = torch.rand(1, 1, 32, 8).bfloat16(), torch.randint(0, 8, (1, 1, 32, 2))
    chosen[:, :, 16:] = 0  # the second chunk needs expert 0 only
    home = torch.arange(8) * chips.count // 8
    mapping = (home[:, None] == torch.arange(chips.count)).int()[None, None]
    given = [chips.put(scores, layout=ROW_MAJOR)]
    given += [chips.put(values, ttnn.uint16, ROW_MAJOR) for values in (mapping, chosen)]
    masked, needed = ttnn.moe_expert_token_remap(*given, reduction_size=16)
    for chip, (got, chunks) in enumerate(zip(chips.get(masked), chips.get(needed))):
        mine = (home == chip).nonzero().flatten()
        selected = (chosen[0, 0, :, :, None] == mine).any(1)
        assert torch.equal(got[0, 0, :, : len(mine)], torch.where(selected, scores[0, 0][:, mine], 0))
        assert chunks.flatten()[len(mine) :].tolist() == [int(e == 0) for e in mine]


# On a mesh of rows and columns. No device is open.
MESH_ROWS, COLUMNS = 2, 4
COUNT = MESH_ROWS * COLUMNS
CHIPS = tuple(range(1000, 1000 + COUNT))  # no real mesh has these


def slot(address: int, width: int) -> Slot:
    coordinates = tuple((row, column) for row in range(MESH_ROWS) for column in range(COLUMNS))
    place = ttnn.BufferType.DRAM, address, 2048
    return Slot(CHIPS, coordinates, *place, (1, 1, 32, width), ttnn.bfloat16)


@pytest.fixture
def shards():
    """The chip in row r and column c holds c + 10 r everywhere."""
    numbers = [column + 10.0 * row for row in range(MESH_ROWS) for column in range(COLUMNS)]
    memory.write(slot(0, 32), [torch.full((1, 1, 32, 32), number).bfloat16() for number in numbers])
    yield
    memory.forget_devices(list(CHIPS))


BY_ROW = [[0, 1, 2, 3]] * COLUMNS + [[10, 11, 12, 13]] * COLUMNS
ALONG_AXES = (  # op, cluster axis, arguments, each chip's values in each piece of 32 columns
    ("experimental.all_gather_async", 1, {"dim": 3}, BY_ROW),
    ("all_gather", 0, {"dim": 3}, [[0, 10], [1, 11], [2, 12], [3, 13]] * MESH_ROWS),
    ("all_reduce", None, {"topology": None}, [[sum(range(4)) * 2 + 40]] * COUNT),
    ("all_reduce", 1, {"topology": None}, [[6]] * COLUMNS + [[46]] * COLUMNS),
)


@pytest.mark.parametrize("name, axis, named, want", ALONG_AXES)
def test_along_an_axis(shards, name, axis, named, want):
    out = slot(1 << 20, 32 * len(want[0]))
    run(Step(GOLDENS[f"ttnn.{name}"], {"input_tensor": slot(0, 32)} | named, (slot(0, 32),), (out,), axis))
    assert [value[0, 0, 0, ::32].tolist() for value in memory.read(out)] == want

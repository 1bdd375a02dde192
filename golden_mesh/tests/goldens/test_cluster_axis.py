"""On a mesh of rows and columns a collective works along one axis. No device is open."""

import pytest
import torch
import ttnn

from golden_mesh.memory import Slot
from golden_mesh.registry import GOLDENS
from golden_mesh.steps import Call, memory, run

ROWS, COLUMNS = 2, 4
CHIPS = tuple(range(1000, 1000 + ROWS * COLUMNS))  # no real mesh has these


def slot(address: int, width: int) -> Slot:
    coordinates = tuple((row, column) for row in range(ROWS) for column in range(COLUMNS))
    return Slot(
        CHIPS, coordinates, ttnn.BufferType.DRAM, address, 2048, (1, 1, 32, width), ttnn.bfloat16
    )


@pytest.fixture
def shards():
    """The chip in row r and column c holds c + 10 r everywhere."""
    numbers = [column + 10.0 * row for row in range(ROWS) for column in range(COLUMNS)]
    values = [torch.full((1, 1, 32, 32), number).bfloat16() for number in numbers]
    memory.write(slot(0, 32), values)
    yield
    memory.forget_devices(list(CHIPS))


def gathered(name: str, width: int, *args, **kwargs) -> list[list[float]]:
    """Run the collective. Returns for each chip the value in each piece of 32 columns."""
    out = slot(1 << 20, width)
    run(Call(GOLDENS[name], (slot(0, 32), *args), kwargs, (slot(0, 32),), (out,)))
    return [value[0, 0, 0, ::32].tolist() for value in memory.read(out)]


@pytest.mark.parametrize("by_position", (False, True))
def test_along_a_row(shards, by_position):
    axis = ((3, 1), {}) if by_position else ((3,), {"cluster_axis": 1})
    got = gathered("ttnn.experimental.all_gather_async", 32 * COLUMNS, *axis[0], **axis[1])
    assert got == [[0, 1, 2, 3]] * COLUMNS + [[10, 11, 12, 13]] * COLUMNS


def test_along_a_column(shards):
    got = gathered("ttnn.all_gather", 32 * ROWS, 3, cluster_axis=0)
    assert got == [[0, 10], [1, 11], [2, 12], [3, 13]] * ROWS


def test_over_all_chips_where_no_axis_is_named(shards):
    assert gathered("ttnn.all_reduce", 32) == [[sum(range(4)) * 2 + 40]] * len(CHIPS)


def test_a_sum_along_a_row(shards):
    assert gathered("ttnn.all_reduce", 32, cluster_axis=1) == [[6]] * COLUMNS + [[46]] * COLUMNS

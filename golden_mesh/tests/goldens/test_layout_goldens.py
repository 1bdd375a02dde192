"""Memory configs, layouts and copies change no value. A dtype changes only values that it cannot hold."""

import math

import pytest
import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.errors import GoldenError
from goldens.support import assert_same, sharded
from integer_packer import integer_packed

WIDTH4 = ((32, 64), 4)  # [1, 1, 32, 256] on four cores


BY_GRID = ttnn.TensorMemoryLayout.WIDTH_SHARDED, ttnn.ShardOrientation.ROW_MAJOR
ROW_MAJOR = dict(layout=ttnn.ROW_MAJOR_LAYOUT)
SHARDED = dict(memory_config=sharded("WIDTH", *WIDTH4))
MOVED = (1, 1, 32, 256)
# The call, the tensor's shape and how it is put.
MOVES = {
    "to_l1": (lambda x: ttnn.to_memory_config(x, ttnn.L1_MEMORY_CONFIG), MOVED, {}),
    "to_sharded": (lambda x: ttnn.to_memory_config(x, sharded("WIDTH", *WIDTH4)), MOVED, {}),
    "shard": (lambda x: ttnn.interleaved_to_sharded(x, sharded("WIDTH", *WIDTH4)), MOVED, {}),
    "shard by grid": (
        lambda x: ttnn.interleaved_to_sharded(x, ttnn.CoreCoord(4, 1), [32, 64], *BY_GRID),
        MOVED,
        {},
    ),
    "to_row_major": (lambda x: ttnn.to_layout(x, ttnn.ROW_MAJOR_LAYOUT), MOVED, {}),
    "untilize": (ttnn.untilize, MOVED, {}),
    "clone": (lambda x: ttnn.clone(x, memory_config=ttnn.L1_MEMORY_CONFIG), MOVED, {}),
    "move": (ttnn.move, MOVED, {}),
    "reallocate": (ttnn.reallocate, MOVED, {}),
    "unshard": (lambda x: ttnn.sharded_to_interleaved(x, ttnn.L1_MEMORY_CONFIG), MOVED, SHARDED),
    "reshard": (lambda x: ttnn.reshard(x, sharded("WIDTH", (32, 32), 8)), MOVED, SHARDED),
    "to_other_shards": (
        lambda x: ttnn.to_memory_config(x, sharded("WIDTH", (32, 128), 2)),
        MOVED,
        SHARDED,
    ),
    "tilize": (ttnn.tilize, (1, 1, 64, 64), ROW_MAJOR),
    "tilize, padding": (
        lambda x: ttnn.tilize_with_val_padding(x, (1, 1, 64, 64), -7.0),
        (1, 1, 33, 45),
        ROW_MAJOR,
    ),
}
for shape in ((1, 1, 64, 64), (1, 2, 33, 45)):
    to_tile = lambda x: ttnn.to_layout(x, ttnn.TILE_LAYOUT)
    MOVES[f"to_tile {shape}"] = to_tile, shape, ROW_MAJOR


@pytest.mark.parametrize("name", MOVES)
def test_values_are_unchanged(chips, name):
    call, shape, put = MOVES[name]
    assert_same(*chips.run(call, lambda x: x, shape, **put))


@pytest.mark.parametrize("shape", ((1, 1, 64, 64), (1, 2, 33, 45)), ids=str)
def test_tilizing_with_zeros_keeps_the_values(chips, shape):
    x = chips.draw(*shape)
    for got, want in zip(chips.get(ttnn.tilize_with_zero_padding(chips.put(x, **ROW_MAJOR))), x):
        assert torch.equal(got[:, :, : shape[2], : shape[3]].float(), want)
        assert got.count_nonzero() == want.count_nonzero()


def test_padding_beyond_the_last_tile_comes_back_with_the_tensor(chips):
    x = chips.draw(1, 1, 20, 50)
    there = ttnn.tilize_with_val_padding(
        chips.put(x, layout=ttnn.ROW_MAJOR_LAYOUT), (1, 1, 64, 128), -7.0
    )
    host = ttnn.allocate_tensor_on_host(there.spec, chips.device)
    ttnn.copy_device_to_host_tensor(there, host)
    for back in (there.cpu(), host):
        assert tuple(back.padded_shape) == tuple(there.padded_shape) == (1, 1, 64, 128)
        assert_same([ttnn.to_torch(shard) for shard in ttnn.get_device_tensors(back)], x)


@pytest.mark.parametrize(
    "op, padding",
    (
        (lambda x: ttnn.tilize_with_val_padding(x, (1, 1, 64, 128), -7.0), -7.0),
        (lambda x: ttnn.tilize_with_zero_padding(x), 0.0),
        (
            lambda x: ttnn.fill_implicit_tile_padding(
                ttnn.to_layout(x, ttnn.TILE_LAYOUT), math.inf
            ),
            math.inf,
        ),
    ),
    ids="tilize_with_val_padding tilize_with_zero_padding fill_implicit_tile_padding".split(),
)
@pytest.mark.parametrize("dtype", (ttnn.bfloat16, ttnn.float32), ids=str)
def test_padding_that_an_op_has_filled_can_be_read(chips, op, padding, dtype):
    x = chips.draw(1, 1, 33, 45)
    got = op(chips.put(x, dtype, ttnn.ROW_MAJOR_LAYOUT))
    rows, columns = tuple(got.padded_shape)[-2:]
    want = [F.pad(v, (0, columns - 45, 0, rows - 33), value=padding) for v in x]
    for back in (got, got.cpu()):
        assert_same(
            [shard.to_torch_with_padded_shape() for shard in ttnn.get_device_tensors(back)], want
        )
    assert_same(got, x)


def test_padding_left_by_another_op_cannot_be_read(chips):
    """In another tensor, in place, and in a block float, where 16 neighbors round together."""
    filled = ttnn.tilize_with_val_padding(
        chips.put(chips.draw(1, 1, 33, 45), layout=ttnn.ROW_MAJOR_LAYOUT), (1, 1, 64, 64), 3.0
    )
    moved = ttnn.neg(filled)
    block = ttnn.tilize_with_val_padding(
        chips.put(chips.draw(1, 1, 33, 45), layout=ttnn.ROW_MAJOR_LAYOUT),
        (1, 1, 64, 64),
        3.0,
        dtype=ttnn.bfloat8_b,
    )
    ttnn.add_(filled, 1.0)
    for tensor in (moved, block, filled):
        with pytest.raises(GoldenError, match="a chip's padding is unknown"):
            ttnn.get_device_tensors(tensor)[0].to_torch_with_padded_shape()


def test_untilize_with_unpadding_keeps_up_to_the_last_index_named(chips):
    x = chips.draw(1, 1, 64, 64)
    got = ttnn.untilize_with_unpadding(chips.put(x), ttnn.Shape((0, 0, 32, 44)))
    assert_same(got, [v[:, :, :33, :45] for v in x])


def test_typecast_to_a_block_float_rounds_once(chips):
    x = chips.draw(1, 1, 33, 45)
    want = [integer_packed(v, 7, one_by_one=False) for v in x]
    assert_same(ttnn.typecast(chips.put(x), ttnn.bfloat8_b), want)
    assert_same(ttnn.typecast(chips.put(x), ttnn.bfloat16, ttnn.bfloat8_b), want)


def test_typecast_of_float32_to_a_block_float_cuts_to_bfloat16_first(chips):
    x = torch.randn(1, 1, 33, 45)
    got = ttnn.typecast(chips.put(x, ttnn.float32), ttnn.bfloat8_b)
    assert_same(got, integer_packed(x, 7, one_by_one=False))


def test_typecast_of_float32_to_bfloat16_rounds_ties_to_even(chips):
    x = (torch.arange(1, 33) + 2**9).reshape(
        1, 1, 1, 32
    ) / 2.0  # every second one lies between two bfloat16s
    got = ttnn.typecast(chips.put(x, ttnn.float32), ttnn.bfloat16)
    assert_same(got, x.bfloat16())


def test_typecast_to_float32_is_exact(chips):
    x = chips.draw(1, 1, 33, 45)
    assert_same(ttnn.typecast(chips.put(x), ttnn.float32), x)


@pytest.mark.parametrize(
    "dtype, want", ((ttnn.int32, [-2, -1, 0, 2, 3]), (ttnn.uint16, [0, 0, 1, 3, 4])), ids=str
)
def test_typecast_truncates_to_integers_and_rounds_to_uint16(chips, dtype, want):
    """A Wormhole computes floor(x + 0.5) for uint16, as ttnn's own golden function does. Halves go up."""
    x = torch.tensor([-2.5, -1.75, 0.75, 2.5, 3.75]).reshape(1, 1, 1, 5)
    got = ttnn.typecast(chips.put(x, ttnn.float32), dtype)
    assert_same(got, torch.tensor(want).reshape(1, 1, 1, 5))


def test_a_move_may_change_the_dtype(chips):
    x = chips.draw(1, 1, 32, 64)
    got = ttnn.to_memory_config(chips.put(x), ttnn.L1_MEMORY_CONFIG, dtype=ttnn.bfloat8_b)
    assert_same(got, [integer_packed(v, 7) for v in x])


def test_assign_may_write_into_its_second_tensor(chips):
    x = chips.draw(1, 1, 33, 45)
    target = ttnn.empty(
        [1, 1, 33, 45], ttnn.float32, ttnn.TILE_LAYOUT, chips.device, ttnn.DRAM_MEMORY_CONFIG
    )
    ttnn.assign(chips.put(x, ttnn.float32), target)
    assert_same(target, x)


def test_copy_overwrites_its_target_and_no_replica_of_it(chips):
    x, y = chips.draw(1, 1, 33, 45), torch.randn(1, 1, 33, 45).bfloat16()
    target = chips.put(y)
    replica = ttnn.clone(target)
    ttnn.copy(chips.put(x), target)
    assert_same(target, x)
    assert_same(replica, y)

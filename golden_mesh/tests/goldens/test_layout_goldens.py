"""Memory configs, layouts and copies change no value. A dtype changes those that it cannot hold."""

import math

import pytest
import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.errors import GoldenError
from goldens.support import ROW_MAJOR, Put, assert_same, bf16, examples, sharded
from integer_packer import integer_packed

X, ODD, WHOLE, MANY = (1, 1, 32, 256), (1, 1, 33, 45), (1, 1, 64, 64), (1, 2, 33, 45)
WIDTH4, HALVES, EIGHTHS = (sharded("WIDTH", (32, 256 // n), n) for n in (4, 2, 8))
GRID = ttnn.CoreCoord(4, 1), [32, 64]
BY_GRID = ttnn.TensorMemoryLayout.WIDTH_SHARDED, ttnn.ShardOrientation.ROW_MAJOR
ODD_ROWS, MANY_ROWS, FULL_ROWS = (Put(shape, layout=ROW_MAJOR) for shape in (ODD, MANY, WHOLE))
SHARDS, L1 = Put(X, memory_config=WIDTH4), ttnn.L1_MEMORY_CONFIG
FLOATS = Put(lambda: torch.randn(ODD), ttnn.float32)
WIDE = Put(lambda: torch.randn(X), ttnn.float32)
# Every second one lies between two bfloat16s.
TIES = Put(((torch.arange(1, 33) + 2**9) / 2.0).reshape(1, 1, 1, 32), ttnn.float32)

EXAMPLES = {
    "ttnn.to_memory_config(x, L1)": ("x", X),
    "ttnn.to_memory_config(x, WIDTH4)": ("x", X),
    "ttnn.interleaved_to_sharded(x, WIDTH4)": ("x", X),
    "ttnn.interleaved_to_sharded(x, *GRID, *BY_GRID)": ("x", X),
    "ttnn.to_layout(x, ttnn.ROW_MAJOR_LAYOUT)": ("x", X),
    "ttnn.untilize(x)": ("x", X),
    "ttnn.clone(x, memory_config=L1)": ("x", X),
    "ttnn.sharded_to_interleaved(x, L1)": ("x", SHARDS),
    "ttnn.reshard(x, EIGHTHS)": ("x", SHARDS),
    "ttnn.to_memory_config(x, HALVES)": ("x", SHARDS),
    "ttnn.tilize(x)": ("x", FULL_ROWS),
    "ttnn.tilize_with_val_padding(x, (1, 1, 64, 64), -7.0)": ("x", ODD_ROWS),
    "ttnn.to_layout(x, ttnn.TILE_LAYOUT)": ("x", FULL_ROWS),
    "ttnn.to_layout(x, dtype=None, layout=ttnn.TILE_LAYOUT)": ("x", MANY_ROWS),
    "ttnn.move(ttnn.clone(x))": ("x", X),
    "ttnn.reallocate(ttnn.clone(x))": ("x", X),
    "ttnn.fill_implicit_tile_padding(x, 3.0)": ("x", X),
    "ttnn.tilize_with_zero_padding(x)": ("x", FULL_ROWS),
    "ttnn.tilize_with_zero_padding(x)[:, :, :33, :45]": ("x", MANY_ROWS),
    # the last index that stays
    "ttnn.untilize_with_unpadding(x, ttnn.Shape((0, 0, 32, 44)))": ("x[:, :, :33, :45]", WHOLE),
    "ttnn.assign(x, memory_config=L1, dtype=ttnn.float32)": ("x", X),
    "ttnn.typecast(x, ttnn.float32)": ("x", ODD),
    "ttnn.experimental.typecast(x, ttnn.float32)": ("x", ODD),
    "ttnn.typecast(x, ttnn.bfloat8_b)": ("packed(x, one_by_one=False)", ODD),
    "ttnn.typecast(x, ttnn.bfloat16, ttnn.bfloat8_b)": ("packed(x, one_by_one=False)", ODD),
    "ttnn.to_memory_config(x, L1, dtype=ttnn.bfloat8_b)": ("packed(x)", ODD),
    # Copies have a bfloat16 dest.
    "ttnn.clone(x, dtype=ttnn.bfloat16)": ("cut(x)", FLOATS),
    "ttnn.clone(x, dtype=ttnn.float32)": ("x", FLOATS),
    "ttnn.clone(x, dtype=ttnn.bfloat8_b)": ("packed(cut(x))", FLOATS),
    "ttnn.to_memory_config(x, L1, dtype=ttnn.bfloat16)": ("cut(x)", FLOATS),
    "ttnn.interleaved_to_sharded(x, WIDTH4, output_dtype=ttnn.bfloat16)": ("cut(x)", WIDE),
    "ttnn.sharded_to_interleaved(ttnn.to_memory_config(x, WIDTH4), L1, output_dtype=ttnn.bfloat16)": ("cut(x)", WIDE),
    "copied(x)": ("cut(x)", FLOATS),
    "ttnn.typecast(x, ttnn.bfloat16)": ("x.bfloat16()", TIES),
    "ttnn.typecast(x, dtype=ttnn.bfloat16)": ("x", Put((1, 1, 32, 64), ttnn.bfloat4_b)),
    # Into replicas, which part.
    "ttnn.assign(y, x)": ("y", lambda: bf16(*ODD), ODD, {"in_place": True, "dtype": ttnn.float32}),
    "ttnn.copy(y, x)": ("y", lambda: bf16(*ODD), ODD, {"in_place": True}),
}


THROUGH_DEST = (
    "ttnn.to_layout(x, ttnn.ROW_MAJOR_LAYOUT)", "ttnn.untilize(x)", "ttnn.tilize(rows)", "ttnn.transpose(x, -2, -1)",
    "ttnn.permute(x, (0, 3, 1, 2))", "ttnn.untilize_with_unpadding(x, ttnn.Shape((0, 0, 31, 31)))",
    "ttnn.tilize_with_zero_padding(rows)", "ttnn.tilize_with_val_padding(rows, (1, 1, 32, 32), 0.0)",
)  # fmt: skip


@pytest.mark.parametrize("call", THROUGH_DEST)
def test_the_packer_writes_infinity_for_nan_of_bfloat16(chips, call):
    """On a simulated N150. FLOAT32 moves without a change, and so do a copy and a transpose of outer dims."""
    held = torch.full((1, 1, 32, 32), math.nan)
    for dtype, want in (ttnn.bfloat16, math.inf), (ttnn.float32, math.nan):
        x, rows = chips.put(held, dtype), chips.put(held, dtype, layout=ROW_MAJOR)
        for got in chips.get(eval(call, {"ttnn": ttnn, "x": x, "rows": rows})):
            torch.testing.assert_close(got.float(), torch.full(got.shape, want), equal_nan=True)
        for moved in (ttnn.transpose(x, 0, 1), ttnn.clone(x)):
            assert all(got.isnan().all() for got in chips.get(moved))


def packed(x: torch.Tensor, one_by_one: bool = True) -> torch.Tensor:
    return integer_packed(x, 7, one_by_one)


def copied(x: ttnn.Tensor) -> ttnn.Tensor:
    target = ttnn.zeros_like(x, dtype=ttnn.bfloat16)
    ttnn.copy(x, target)
    return target


test_examples = examples(EXAMPLES, globals(), error=0)


def test_padding_beyond_the_last_tile_comes_back_with_the_tensor(chips):
    x = chips.draw(1, 1, 20, 50)
    there = ttnn.tilize_with_val_padding(chips.put(x, layout=ROW_MAJOR), (1, 1, 64, 128), -7.0)
    host = ttnn.allocate_tensor_on_host(there.spec, chips.device)
    ttnn.copy_device_to_host_tensor(there, host)
    for back in (there.cpu(), host):
        assert tuple(back.padded_shape) == tuple(there.padded_shape) == (1, 1, 64, 128)
        assert_same(chips.get(back), x)


FILLS = {
    "ttnn.tilize_with_val_padding(x, (1, 1, 64, 128), -7.0)": -7.0,
    "ttnn.tilize_with_zero_padding(x)": 0.0,
    "ttnn.fill_implicit_tile_padding(ttnn.to_layout(x, ttnn.TILE_LAYOUT), math.inf)": math.inf,
}


@pytest.mark.parametrize("call", FILLS)
@pytest.mark.parametrize("dtype", (ttnn.bfloat16, ttnn.float32), ids=str)
def test_padding_that_an_op_has_filled_can_be_read(chips, call, dtype):
    values = chips.draw(*ODD)
    got = eval(call, globals(), {"x": chips.put(values, dtype, ROW_MAJOR)})
    rows, columns = tuple(got.padded_shape)[-2:]
    want = [F.pad(v, (0, columns - 45, 0, rows - 33), value=FILLS[call]) for v in values]
    for back in (got, got.cpu()):
        shards = ttnn.get_device_tensors(back)
        assert_same([shard.to_torch_with_padded_shape() for shard in shards], want)
    assert_same(got, values)


def test_padding_left_by_another_op_cannot_be_read(chips):
    """In another tensor, in place, and in a block float, where 16 neighbors round together."""
    fill = lambda **how: ttnn.tilize_with_val_padding(
        chips.put(bf16(*ODD), layout=ROW_MAJOR), (1, 1, 64, 64), 3.0, **how
    )
    filled, block = fill(), fill(dtype=ttnn.bfloat8_b)
    moved = ttnn.transpose(filled, 2, 3)
    ttnn.add_(filled, 1.0)
    for tensor in (moved, block, filled):
        with pytest.raises(GoldenError, match="a chip's padding is unknown"):
            ttnn.get_device_tensors(tensor)[0].to_torch_with_padded_shape()


def test_parts_of_a_tensor_go_to_shards_and_back(chips):
    x, cache = chips.draw(1, 1, 192, 64), chips.put(torch.zeros(1, 1, 192, 64))
    copy, given = ttnn.clone(cache), chips.put(x)
    by_rows = ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.ShardOrientation.ROW_MAJOR
    for index in (2, 0):  # of three parts, on two cores
        part = ttnn.interleaved_to_sharded_partial(given, ttnn.CoreCoord(2, 1), [32, 64], 3, index, *by_rows)
        assert_same(part, [v[:, :, 64 * index : 64 * index + 64] for v in x])
        place = ttnn.DRAM_MEMORY_CONFIG
        ttnn.sharded_to_interleaved_partial(part, cache, 3, index, memory_config=place)
    assert_same(cache, [torch.cat((v[:, :, :64], v[:, :, :64] * 0, v[:, :, 128:]), 2) for v in x])
    assert_same(copy, torch.zeros(1, 1, 192, 64))
    with pytest.raises(GoldenError, match="does not convert"):
        other = chips.put(torch.zeros(1, 1, 192, 64), ttnn.float32)
        ttnn.sharded_to_interleaved_partial(part, other, 3, 0, memory_config=place)

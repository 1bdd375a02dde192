"""Calls that a chip silently gets wrong raise an error. Similar right calls raise none.

The calls are read from HAZARDS.md, which keeps the page true.
"""

import gc
import re
from pathlib import Path

import pytest
import torch
import ttnn

from golden_mesh.goldens import attention_decode
from golden_mesh.hazards import HAZARDS, HazardError, HazardWarning, checks, noted
from goldens.support import kernel

PAGE = (Path(__file__).parents[2] / "HAZARDS.md").read_text()
WIDE_ROW = "sum of a wide row in a bfloat16 dest"


def code(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.S)


BEGINNING, *SECTIONS = PAGE.split("\n## ")
REPRODUCTIONS = {section.split("\n", 1)[0]: code(section)[0] for section in SECTIONS}

BLACKHOLES = "chunks of keys on a Blackhole"
# What the reproductions of noted hazards print here.
SEEN = {
    "HiFi4 with a float32 dest": 0,
    "buffer where a live trace writes": 2,
    WIDE_ROW: 0.9447,
    "chunk start between chunks of keys": 0.9968,
    "gather of wide rows": 0,
    "bias after a fused activation": 0.2689,
    "sliding window with k_chunk_size 0": 0.9922,
    BLACKHOLES: 1,
    "NaN and infinity in a function": float("inf"),
    "convolution to bfloat8_b": 1.009,
}


def reproduction(mesh) -> dict:
    """The names that the reproductions use."""
    names = {"torch": torch, "ttnn": ttnn, "mesh": mesh}
    exec(code(BEGINNING)[1], names)  # the first block opens the mesh
    return names


def reproduce(name: str, mesh) -> None:
    exec(REPRODUCTIONS[name], reproduction(mesh))


@pytest.mark.parametrize("name", HAZARDS)
def test_each_hazard_is_refused_or_noted(chips, several_chips, name, capsys, monkeypatch):
    gc.collect()  # an earlier test's tensor that goes in the middle of this one leaves other room for the next buffer
    hazard = HAZARDS[name]
    monkeypatch.setattr(attention_decode, "JOINS_FIVE_TILES", True)  # as in ttnn below 0.81
    if name == BLACKHOLES:
        monkeypatch.setattr(checks, "HANGS", chips.device.arch().name)
    if hazard.refused:
        with pytest.raises(HazardError, match=re.escape(hazard.wrong)):
            reproduce(name, chips.device)
    else:
        noted.clear()
        with pytest.warns(HazardWarning, match=re.escape(hazard.wrong)):
            reproduce(name, chips.device)
        assert [(met, count) for (met, _), count in noted.items()] == [(name, 1)]
        off = float(re.search(r"tensor\((.*)\)", capsys.readouterr().out)[1])
        assert off == pytest.approx(SEEN[name], abs=1e-3)


CALLS = """
def prefill(
    rows, keys=None, op="scaled_dot_product_attention", padding=None, how=lambda mask: mask, dtype=ttnn.bfloat16
):
    keys = keys or rows
    q, k, v = (put(torch.ones(1, 1, n, 64)) for n in (rows, keys, keys))
    mask = torch.zeros(1, 1, rows, keys)
    mask = how(ttnn.from_torch(mask, dtype, layout=ttnn.TILE_LAYOUT, device=mesh, pad_value=padding))
    getattr(ttnn.transformer, op)(q, k, v, attn_mask=mask, is_causal=False)

def decode(columns, padding=None, paged=""):
    q, cache = put(torch.randn(1, 2, 32, 64)), put(torch.randn(2, 1, 64, 64))
    mask = torch.zeros(2, 1, 32, columns)
    mask = ttnn.from_torch(mask, ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh, pad_value=padding)
    op = getattr(ttnn.transformer, paged + "scaled_dot_product_attention_decode")
    op(q, cache, cache, *[ints([0], [1])] * bool(paged), is_causal=False, attn_mask=mask)

def chunks(queries, keys):
    return ttnn.SDPAProgramConfig(compute_with_storage_grid_size=(8, 8), q_chunk_size=queries, k_chunk_size=keys)

def chunked(start, queries, keys):
    cache, q, table = put(torch.randn(8, 4, 32, 64)), put(torch.randn(1, 4, 64, 64)), ints([*range(8)])
    attend = ttnn.transformer.chunked_scaled_dot_product_attention
    attend(q, cache, cache, table, chunk_start_idx_tensor=ints(start), program_config=chunks(queries, keys))

def missing_blocks(keys):
    cache, q = put(torch.randn(16, 1, 32, 64)), put(torch.randn(1, 8, 4, 64))
    table = ints(*[[2 * u, 2 * u + 1, -1, -1] for u in range(8)])
    attend = ttnn.transformer.paged_scaled_dot_product_attention_decode
    attend(q, cache, cache, table, cur_pos_tensor=ints(*[40] * 8), program_config=chunks(32, keys))

def window(size, at, keys=0, wide=None, blocks=16):
    q, cache = put(torch.randn(1, 2, 32, 64)), put(torch.randn(2 * blocks, 1, 32, 64))
    table = ints(*torch.arange(2 * blocks).view(2, blocks).tolist())
    how = dict(program_config=None if keys is None else chunks(0, keys), sliding_window_size=size)
    how |= dict(compute_kernel_config=None if wide is None else kernel())
    attend = ttnn.transformer.paged_scaled_dot_product_attention_decode
    attend(q, cache, cache, table, cur_pos_tensor=ints(at, 0), **how)

def window_of_lines(keys, size=33):
    q, cache = put(torch.randn(1, 2, 32, 64)), put(torch.randn(2, 1, 128, 64))
    attend = ttnn.transformer.scaled_dot_product_attention_decode
    program = None if keys is None else chunks(0, keys)
    attend(q, cache, cache, cur_pos=[40, 100], sliding_window_size=size, program_config=program)

def ternary(op, *shapes, dtype=ttnn.bfloat16, out=ttnn.float32, **how):
    inputs = [put(torch.ones(shape), dtype) for shape in shapes]
    getattr(ttnn, op)(*inputs, output_tensor=put(torch.zeros(2, 64, 64), out), **how)

def tiles(rows, width, to, height=None, **how):
    x = put(torch.ones(1, 1, rows, width), layout=ttnn.ROW_MAJOR_LAYOUT)
    ttnn.tilize_with_val_padding(x, (1, 1, height or -(-rows // 32) * 32, to), 7.0, **how)

def shards(op, *args, **how):
    op(put(torch.ones(1, 1, 256, 256), memory_config=sharded("HEIGHT_SHARDED", (32, 256), 1, 8)), *args, **how)

def linear(rows, of_bias, **how):
    x, weight, bias = (put(torch.ones(shape)) for shape in ((1, 1, rows, 32), (32, 64), (of_bias, 64)))
    return ttnn.linear(x, weight, bias=bias, **how)

def banks(columns, shard, bias=0, rows=32, default=False):
    program = ttnn.MatmulMultiCoreReuseMultiCastProgramConfig(
        compute_with_storage_grid_size=(8, 1), in0_block_w=1, out_subblock_h=1, out_subblock_w=1, per_core_M=1,
        per_core_N=-(-columns // 8), transpose_mcast=False, fused_activation=None, fuse_batch=True,
    )
    def stored(rows, shard):
        place = sharded("WIDTH_SHARDED", (rows, 32 * shard), 12, 1, ttnn.BufferType.DRAM)
        return put(torch.ones(rows, 32 * columns), memory_config=place if shard else ttnn.DRAM_MEMORY_CONFIG)
    how = dict(bias=stored(32, bias)) if bias else {}
    x, op = put(torch.ones(rows, 256)), ttnn.linear if bias else ttnn.matmul
    op(x, stored(256, shard), program_config=None if default else program, **how)

def norm(op, width, wide=None):
    fidelity = ttnn.MathFidelity.HiFi3
    config = ttnn.WormholeComputeKernelConfig(math_fidelity=fidelity, fp32_dest_acc_en=bool(wide))
    config = None if wide is None else config
    getattr(ttnn, op)(put(torch.randn(1, 1, 32, width)), compute_kernel_config=config)

def gather(*shape, dim=-1, layout=ttnn.ROW_MAJOR_LAYOUT):
    index = put(torch.zeros(shape, dtype=torch.int32), ttnn.uint32, layout)
    ttnn.gather(put(torch.randn(shape), layout=layout), dim, index)

def pad(value, layout=ttnn.ROW_MAJOR_LAYOUT, dtype=ttnn.float32, **how):
    ttnn.pad(put(torch.ones(1, 1, 32, 32), dtype, layout), [(0, 0), (0, 0), (0, 0), (0, 32)], value, **how)

def slice_rows(shape, start, end, layout=ttnn.ROW_MAJOR_LAYOUT, dtype=ttnn.float32):
    ttnn.slice(put(torch.randn(shape), dtype, layout), start, end)

def broadcast(**memory):
    if mesh.get_num_devices() > 1:
        ttnn.broadcast(put(torch.randn(1, 1, 32, 64)), ttnn.MeshCoordinate(0, 0), **memory)

def whole(value, dtype=ttnn.int32):
    return put(torch.full((32, 32), value), dtype)

def update(positions, blocks):
    count = len(positions)
    cache, table = put(torch.zeros(4, 1, 64, 32)), ints(*[[block] for block in blocks])
    rows = put(torch.ones(1, count, 1, 32), memory_config=sharded("HEIGHT_SHARDED", (32, 32), count, 1))
    at = ints(*positions)
    ttnn.experimental.paged_update_cache(cache, rows, update_idxs_tensor=at, page_table=table)

def binary(op, *dims, shape=(32, 32), dtype=ttnn.bfloat16):
    getattr(ttnn, op)(*(put(torch.ones(*outer, *shape), dtype) for outer in dims))
"""
BANKS = "multicast matmul of wider bank shards"
SHARDS, FOUR_BITS = "transpose of height shards in L1", "typecast to bfloat4_b"
PADDING, LENGTH = "padding of an attention mask", "mask of another length than the page table"
QUERIES, KEYS = (f"chunk start between chunks of {of}" for of in ("queries", "keys"))
WINDOW, ROWS, TILES = (
    "sliding window within a dynamic chunk",
    "row broadcast to another dtype",
    "tiles of padding alone",
)
OUTER, PAD, SLICE = ("broadcast at dim -6 beyond rank 6", "pad of float32", "slice from an unaligned column")
MEETS = {  # call -> the hazard that it meets
    "prefill(50)": PADDING,
    "prefill(64, 50)": PADDING,
    "prefill(50, 64)": None,
    "prefill(50, padding=-float('inf'))": None,
    "prefill(50, padding=-1e9, dtype=ttnn.bfloat8_b)": None,
    "prefill(50, padding=-1.0)": PADDING,
    "prefill(50, how=lambda mask: ttnn.fill_implicit_tile_padding(mask, -1e9))": None,
    "prefill(50, padding=-1e9, how=lambda mask: ttnn.reshape(ttnn.reshape(mask, (50, 50)), (1, 1, 50, 50)))": None,
    "prefill(50, padding=-1e9, how=lambda mask: ttnn.permute(mask, (0, 1, 3, 2)))": PADDING,
    "prefill(50, op='flash_mla_prefill')": PADDING,
    "decode(50)": PADDING,
    "decode(50, -1e9)": None,
    "decode(50, paged='paged_')": PADDING,
    "decode(64, paged='paged_')": None,
    "decode(32, paged='paged_')": LENGTH,
    "decode(96, paged='paged_')": LENGTH,
    "chunked(64, 64, 64)": None,
    "chunked(64, 64, 128)": KEYS,
    "chunked(128, 64, 128)": None,
    "chunked(32, 64, 32)": QUERIES,
    "missing_blocks(64)": None,
    "missing_blocks(128)": "chunk of keys with a missing block",
    "window(64, 127)": None,
    "window(64, 126)": WINDOW,
    "window(128, 140)": WINDOW,
    "window(128, 140, wide=True)": None,
    "window(64, 126, 256)": None,
    "window(64, 126, None)": None,
    "window(None, 126)": None,
    "window_of_lines(0)": "sliding window with k_chunk_size 0",
    "window_of_lines(0, None)": None,
    "window_of_lines(32)": None,
    "window_of_lines(None)": None,
    "ternary('addcmul', (2, 64, 64), (64, 64), (1, 64), value=1.0)": ROWS,
    "ternary('addcdiv', (1, 64), (64, 64), (2, 64, 64), value=1.0)": ROWS,
    "ternary('addcmul', (2, 64, 64), (64, 64), (64, 1), value=1.0)": None,
    "ternary('addcmul', (2, 64, 64), (64, 64), (1, 64), value=1.0, out=ttnn.bfloat16)": None,
    "ternary('addcmul', (2, 64, 64), (64, 64), (1, 64), value=1.0, dtype=ttnn.float32)": None,
    "tiles(64, 2048, 3072)": TILES,
    "tiles(64, 3040, 3072)": None,
    "tiles(64, 3000, 3072)": TILES,
    "tiles(64, 3010, 3072)": None,
    "tiles(50, 50, 128, 64)": None,
    "tiles(4096, 2048, 3072)": None,
    "shards(ttnn.transpose, 2, 3)": SHARDS,
    "shards(ttnn.transpose, -1, -2, memory_config=ttnn.L1_MEMORY_CONFIG)": SHARDS,
    "shards(ttnn.transpose, -1, -2, memory_config=ttnn.DRAM_MEMORY_CONFIG)": None,
    "shards(ttnn.transpose, 0, 1)": None,
    "shards(ttnn.permute, (0, 1, 3, 2))": SHARDS,
    "shards(ttnn.permute, (0, 1, 3, 2), memory_config=ttnn.DRAM_MEMORY_CONFIG)": None,
    "shards(ttnn.permute, (1, 0, 2, 3))": None,
    "shards(ttnn.matmul, put(torch.ones(256, 32)), transpose_a=True)": SHARDS,
    "shards(ttnn.matmul, put(torch.ones(256, 32)))": None,
    "shards(ttnn.to_memory_config, ttnn.DRAM_MEMORY_CONFIG, dtype=ttnn.bfloat4_b)": FOUR_BITS,
    "shards(ttnn.clone, dtype=ttnn.bfloat4_b)": FOUR_BITS,
    "linear(1, 32)": "bias of more rows than the product",
    "linear(1, 32, memory_config=ttnn.L1_MEMORY_CONFIG)": None,
    "linear(1, 40)": None,
    "linear(32, 32)": None,
    "banks(37, 4)": None,
    "banks(37, 5)": BANKS,
    "banks(8, 2)": BANKS,
    "banks(37, 0)": None,
    "banks(37, 0, bias=5)": None,
    "banks(37, 4, bias=4)": None,
    "banks(37, 4, bias=5)": BANKS,
    "banks(37, 5, rows=1024, default=True)": BANKS,
    "norm('rms_norm', 2048)": WIDE_ROW,
    "norm('rms_norm', 1024)": None,
    "norm('rms_norm', 2048, True)": None,
    "norm('layer_norm', 2048)": None,
    "norm('layer_norm', 2048, False)": WIDE_ROW,
    "norm('rms_norm_pre_all_gather', 2048)": WIDE_ROW,
    "gather(1, 1920)": None,
    "gather(1, 1921)": "gather of wide rows",
    "gather(1, 2048, layout=ttnn.TILE_LAYOUT)": None,
    "gather(2048, 2, dim=0)": "gather of wide rows",
    "pad(7.0)": PAD,
    "pad(7.0, ttnn.TILE_LAYOUT)": None,
    "pad(7.0, ttnn.TILE_LAYOUT, use_multicore=False)": PAD,
    "pad(0.0)": None,
    "pad(7.0, dtype=ttnn.bfloat16)": None,
    "ttnn.pad(put(torch.ones(1, 1, 32, 32), ttnn.float32, ttnn.ROW_MAJOR_LAYOUT), (1, 1, 32, 64), (0, 0, 0, 0), "
    "value=-1)": PAD,
    "slice_rows((5, 65, 1025), (0, 0, 1), (5, 64, 1025))": SLICE,
    "slice_rows((5, 65, 1025), (0, 0, 1), (5, 65, 1025))": None,
    "slice_rows((5, 65, 1032), (0, 0, 8), (5, 64, 1032))": None,
    "slice_rows((5, 65, 33), (0, 0, 1), (5, 64, 33))": None,
    "slice_rows((5, 65, 1025), (0, 0, 1), (5, 64, 1025), ttnn.TILE_LAYOUT, ttnn.bfloat8_b)": SLICE,
    "slice_rows((5, 65, 1020), (0, 0, 1), (5, 64, 1020))": None,
    "broadcast(memory_config=ttnn.DRAM_MEMORY_CONFIG)": None,
    "ttnn.floor_div(whole(7), whole(2))": "floor_div of integers",
    "ttnn.addalpha(whole(7), whole(2), 3)": "integers in a kernel of floats",
    "ttnn.cumsum(whole(7, ttnn.uint16), 0)": "integers in a kernel of floats",
    "ttnn.cumsum(whole(7, ttnn.uint32), 0)": None,
    "ttnn.lcm(whole(1 << 15), whole(2))": "lcm beyond 32767",
    "ttnn.lcm(whole((1 << 15) - 1), whole(2))": None,
    "ttnn.floor_div(whole(7.0, ttnn.float32), whole(2.0, ttnn.float32))": None,
    "ttnn.floor_div(whole(7), 2)": None,
    "ttnn.div(whole(7), whole(2), rounding_mode='floor')": None,
    "ttnn.tosa_scatter(put(torch.zeros(1, 1 << 16, 1)), ints([65535]), put(torch.ones(1, 1, 1)))": None,
    # Two tokens of a user in neighboring tiles, and skipped rows that name another row's tile.
    "update([31, 32, -1, -1], [0, 0, 0, 0])": None,
    "binary('add', (2, 1, 1, 1, 1), (2, 3, 1, 1, 1))": OUTER,
    "binary('multiply_', (2, 3, 1, 1, 1), (2, 1, 1, 1, 1))": OUTER,
    "binary('bitwise_or', (2, 1, 1, 1, 1), (2, 3, 1, 1, 1), dtype=ttnn.int32)": OUTER,
    "binary('where', (2, 3, 1, 1, 1), (2, 1, 1, 1, 1), (2, 1, 1, 1, 1))": OUTER,
    "binary('add', (2, 2, 1, 1, 1, 1), (2, 2, 3, 1, 1, 1))": OUTER,
    "binary('add', (1, 1, 1, 1, 1), (1, 3, 1, 1, 1))": None,
    "binary('add', (2, 3, 1, 1, 1), (2, 3, 2, 1, 1))": None,
}


@pytest.mark.parametrize("call", MEETS)
def test_which_calls_meet_a_hazard(chips, call):
    names, met = reproduction(chips.device), []
    exec(CALLS, names)
    noted.clear()
    try:
        eval(call, names)
    except HazardError as error:
        met = [name for name in HAZARDS if HAZARDS[name].wrong in str(error)]
    assert met + [name for name, _ in noted] == [MEETS[call]] * (MEETS[call] is not None)


def test_a_noted_hazard_is_warned_of_once_an_op_at_its_line_and_counted(chips, recwarn):
    name = "HiFi4 with a float32 dest"
    noted.clear()
    x = chips.put(torch.randn(1, 1, 32, 32))
    for _ in range(3):
        ttnn.matmul(x, x, compute_kernel_config=kernel("HiFi4"))
        ttnn.rms_norm(x, compute_kernel_config=kernel("HiFi4"))
    assert noted == {(name, "ttnn.matmul"): 3, (name, "ttnn.rms_norm"): 3}
    assert [w.filename for w in recwarn if w.category is HazardWarning] == [__file__] * 2


def test_rows_of_one_tile_are_named(chips):
    names = reproduction(chips.device)
    exec(CALLS, names)
    with pytest.raises(HazardError, match=r"rows \[1, 3\]"):
        names["update"]([0, 4, 5, 9], [0, 1, 2, 1])

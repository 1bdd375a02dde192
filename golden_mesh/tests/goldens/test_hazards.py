"""Calls that a chip silently gets wrong raise an error. Similar right calls raise none.

The calls are read from HAZARDS.md, which keeps the page true.
"""

import re
from pathlib import Path

import pytest
import torch
import ttnn

from golden_mesh.hazards import HAZARDS, HazardError, HazardWarning, noted
from goldens.support import Put, assert_same, bf16, block_sharded, dram_sharded, sharded

PAGE = (Path(__file__).parents[2] / "HAZARDS.md").read_text()
WIDE_ROW = "sum of a wide row in a bfloat16 dest"


def code(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.S)


BEGINNING, *SECTIONS = PAGE.split("\n## ")
REPRODUCTIONS = {section.split("\n", 1)[0]: code(section)[0] for section in SECTIONS}

# What the reproductions of noted hazards print here: HiFi4 is computed right, a replay
# overwrites, a sum in bfloat16 has the chip's gain.
SEEN = {
    "HiFi4 with a float32 dest": 0,
    "buffer where a live trace writes": 2,
    WIDE_ROW: 0.9447,
}


def reproduce(name: str, mesh) -> None:
    names = {"torch": torch, "ttnn": ttnn, "mesh": mesh}
    exec(code(BEGINNING)[1], names)  # the first block opens the mesh
    exec(REPRODUCTIONS[name], names)


@pytest.mark.parametrize("name", HAZARDS)
def test_each_hazard_is_refused_or_noted(chips, several_chips, name, capsys):
    hazard = HAZARDS[name]
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


@pytest.mark.parametrize("scattered", (None, sharded("WIDTH", (32, 64), 28)))
def test_a_reduce_scatter_of_the_width_sharded_residual_is_right(chips, several_chips, scattered):
    x = torch.randint(-8, 9, (1, 1, 32, 3584)).bfloat16()
    residual = chips.put(x, memory_config=sharded("WIDTH", (32, 128), 28))
    got = ttnn.reduce_scatter(residual, dim=3, cluster_axis=1, memory_config=scattered)
    assert_same(got, list((x.float() * chips.count).chunk(chips.count, -1)))


def test_a_block_sharded_reduce_scatter_with_a_memory_config_is_right(chips, several_chips):
    x = torch.randint(-8, 9, (1, 1, 64, 256 * chips.count)).bfloat16()  # sums are not rounded
    whole, part = (block_sharded((32, width), 4, 2) for width in (64 * chips.count, 64))
    blocks = chips.put(x, memory_config=whole)
    got = ttnn.reduce_scatter(blocks, dim=3, cluster_axis=1, memory_config=part)
    assert_same(got, list((x.float() * chips.count).chunk(chips.count, -1)))


def test_an_interleaved_bias_of_one_tile_a_bank_is_right(chips):
    weights = dram_sharded(chips.device, 256, 384)
    program = ttnn.MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig(
        in0_block_w=2, per_core_M=1, per_core_N=3, fused_activation=None
    )
    how = dict(program_config=program, memory_config=ttnn.L1_WIDTH_SHARDED_MEMORY_CONFIG)
    chips.check(
        lambda x, weight, bias: ttnn.linear(x, weight, bias=bias, **how),
        lambda x, weight, bias: bias.expand(1, 1, 32, 384),
        Put(torch.zeros(1, 1, 32, 256), memory_config=sharded("WIDTH", (32, 64), 4)),
        Put(torch.zeros(1, 1, 256, 384), memory_config=weights), (1, 1, 1, 384), error=0,
    )  # fmt: skip


def test_a_noted_hazard_is_warned_of_once_an_op_and_counted(chips, recwarn):
    name, fidelity = "HiFi4 with a float32 dest", ttnn.MathFidelity.HiFi4
    noted.clear()
    config = ttnn.WormholeComputeKernelConfig(math_fidelity=fidelity, fp32_dest_acc_en=True)
    x = chips.put(torch.randn(1, 1, 32, 32))
    for _ in range(3):
        ttnn.matmul(x, x, compute_kernel_config=config)
        ttnn.rms_norm(x, compute_kernel_config=config)
    assert noted == {(name, "ttnn.matmul"): 3, (name, "ttnn.rms_norm"): 3}
    assert len([w for w in recwarn if w.category is HazardWarning]) == 2


@pytest.mark.parametrize(
    "op, width, wide, met",
    (
        ("rms_norm", 2048, None, True),
        ("rms_norm", 1024, None, False),
        ("rms_norm", 2048, True, False),
        ("layer_norm", 2048, None, False),
        ("layer_norm", 2048, False, True),
    ),
)
def test_a_norm_of_a_wide_row_is_noted_without_a_float32_dest(chips, op, width, wide, met):
    noted.clear()
    config = wide if wide is None else ttnn.WormholeComputeKernelConfig(
        math_fidelity=ttnn.MathFidelity.HiFi3, fp32_dest_acc_en=wide
    )  # fmt: skip
    getattr(ttnn, op)(chips.put(torch.randn(1, 1, 32, width)), compute_kernel_config=config)
    assert ((WIDE_ROW, f"ttnn.{op}") in noted) == met


def test_rows_in_tiles_of_their_own_are_written(chips):
    """Two tokens of a user in neighboring tiles, and skipped rows that name another row's tile."""
    cache = chips.put(torch.zeros(4, 1, 64, 32))
    rows = chips.put(torch.ones(1, 4, 1, 32), memory_config=sharded("HEIGHT", (32, 32), 4))
    where = chips.put_ints([31, 32, -1, -1])
    table = chips.put_ints(torch.zeros(4, 1))
    update = ttnn.experimental.paged_update_cache
    update(cache, rows, update_idxs_tensor=where, page_table=table)
    want = torch.zeros(4, 1, 64, 32)
    want[0, :, 31:33] = 1
    assert_same(cache, want)


def test_rows_of_one_tile_are_named(chips):
    ones, places = torch.ones(1, 8, 1, 32), (sharded("HEIGHT", (32, 32), 8, at) for at in (0, 8))
    rows = [chips.put(ones, memory_config=place) for place in places]
    caches = [chips.put(torch.zeros(4, 1, 32, 32), ttnn.bfloat8_b) for _ in "kv"]
    table = chips.put_ints([[0], [1], [2], [3], [1], [0], [0], [0]])
    where = chips.put_ints([0, 4, 5, 6, 9, -1, -1, -1])
    update = ttnn.experimental.paged_fused_update_cache
    with pytest.raises(HazardError, match=r"rows \[1, 4\]"):
        update(caches[0], rows[0], caches[1], rows[1], update_idxs_tensor=where, page_table=table)


def program(queries: int, keys: int) -> ttnn.SDPAProgramConfig:
    return ttnn.SDPAProgramConfig(
        compute_with_storage_grid_size=(8, 8), q_chunk_size=queries, k_chunk_size=keys
    )


@pytest.mark.parametrize("start", (0, 64))
def test_a_chunk_that_starts_with_a_chunk_of_queries_is_computed(chips, start):
    cache, q = chips.put(bf16(8, 4, 32, 64)), chips.put(bf16(1, 4, 64, 64))
    how = dict(chunk_start_idx_tensor=chips.put_ints([start]), program_config=program(64, 64))
    attend, table = ttnn.transformer.chunked_scaled_dot_product_attention, torch.arange(8)[None]
    got = attend(q, cache, cache, chips.put_ints(table), **how)
    assert all(v.isfinite().all() for v in chips.get(got))


def test_missing_blocks_after_the_last_chunk_do_no_harm(chips):
    """Chunks of two blocks: the kernel does not read the third and fourth entry."""
    cache, q = chips.put(bf16(16, 1, 32, 64)), chips.put(bf16(1, 8, 4, 64))
    table = chips.put_ints([[2 * user, 2 * user + 1, -1, -1] for user in range(8)])
    how = dict(cur_pos_tensor=chips.put_ints([40] * 8), program_config=program(32, 64))
    attend = ttnn.transformer.paged_scaled_dot_product_attention_decode
    assert all(v.isfinite().all() for v in chips.get(attend(q, cache, cache, table, **how)))

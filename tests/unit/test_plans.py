"""Plans of cores, matmuls and cache blocks hold for every split of the 7B and small checkpoint."""

from dataclasses import replace

import pytest
from qwen25_7b_lab.bringup.ops import VARIANTS
from qwen25_7b_lab.prices.constants import price
from qwen25_7b_lab.prices.kinds import DTYPES
from qwen25_7b_lab.prices.laws import Case

from models.demos.qwen25_7b.config import BFP8, QWEN25_7B, RECIPES
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.plans.blocks import (
    BLOCKS,
    blocks_for,
    chunked_table_width,
    decode_k_chunk,
    equal_shares,
    table_width,
    whole_chunks,
)
from models.demos.qwen25_7b.plans.chip import BLACKHOLE, WORMHOLE
from models.demos.qwen25_7b.plans.decode_plan import MAX_LM_HEAD_SHARD, DecodeLayout, DecodeMatmul, lm_head_shards
from models.demos.qwen25_7b.plans.grids import TILE, Grid, ceil_div
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS, ParallelPlan
from models.demos.qwen25_7b.plans.planner import PrefillDoesNotFit, max_prefill_rows
from tests.families import config_of, table_of

CONFIGS = {"7b": QWEN25_7B, "small": config_of("qwen2")}
CHIPS = {"8x8": WORMHOLE, "8x7": replace(WORMHOLE, grid=Grid(8, 7))}


def decode_price(plan: DecodeMatmul) -> float:
    """Microseconds of a decode matmul with float32 dest."""
    arch = plan.chip.architecture.lower().split("_")[0]
    case = Case(
        "dram_sharded", arch, w=DTYPES[plan.weight], fp32=True, k=plan.k_tiles, n=plan.n_tiles, width=plan.in0_block_w
    )
    return price(case).us


@pytest.mark.parametrize("tp", (1, 2, 4, 8))
@pytest.mark.parametrize("recipe", (BFP8, RECIPES["performance"]))
def test_no_block_of_k_that_fits_is_cheaper_than_the_planned_one(tp, recipe):
    """With one chip, bfloat4_b gate and up take blocks of four tiles: two would wait for their partial sums."""
    for name, plan in table_of(QWEN25_7B, tp, recipe).decode_matmuls.items():
        assert {plan.widths[0], plan.in0_block_w} <= {*VARIANTS["ttnn.linear"]["in0_block_w"]}, "bringup times both"
        prices = {w: decode_price(replace(plan, in0_block_w=w)) for w in plan.widths}
        assert prices[plan.in0_block_w] <= 1.02 * min(prices.values()), name
        if (name, tp, plan.weight) == ("gate", 1, "bfloat4_b"):
            assert plan.in0_block_w == 4 and prices[2] > 1.2 * prices[4]


@pytest.mark.parametrize("tp, rows", [(1, 256), (2, 512), (4, 1024), (8, 1024)])
def test_the_7bs_longest_prefill_batches(tp, rows):
    table = table_of(QWEN25_7B, tp)
    layer_l1 = DecodeLayout.make(QWEN25_7B, table.parallel, WORMHOLE, MAX_USERS).layer_l1
    assert max_prefill_rows(table, layer_l1) == rows


def test_a_model_too_wide_for_a_cores_l1_is_refused_by_op_and_bytes():
    wide = table_of(replace(QWEN25_7B, intermediate_size=32 * 8 * 800), 1)
    with pytest.raises(PrefillDoesNotFit, match=r"prefill of 32 rows with tp 1: (gate|up|down) takes [\d,]+ bytes"):
        max_prefill_rows(wide, 1_000_000)


@pytest.mark.parametrize("n_tiles, divides", [(4752, 0), (384, 4)], ids=["L1", "cores"])
def test_a_matmul_that_cannot_fit_is_refused_by_its_tiles(n_tiles, divides):
    room = f"fits 64 cores and {WORMHOLE.matmul_l1:,} bytes"
    with pytest.raises(UserError, match=f"no plan of a matmul of 112 x {n_tiles} tiles in bfloat16 {room}"):
        DecodeMatmul.make(112, n_tiles, 28, "bfloat16", WORMHOLE, out_cores=64, divides=divides)


@pytest.mark.parametrize("format", ["bfloat16", "bfloat8_b", "bfloat4_b"])
@pytest.mark.parametrize("vocab_tiles", [4752, 2376, 1188, 594, 33, 17])
def test_logits_shards_but_the_first_have_topks_width_and_are_as_few_as_fit(vocab_tiles, format):
    shards = lm_head_shards(vocab_tiles * TILE, format, WORMHOLE)
    first, *others = (columns // TILE for _, columns in shards)
    assert [start for start, _ in shards] == [TILE * sum([first, *others][:i]) for i in range(len(shards))]
    assert first + sum(others) == vocab_tiles

    def fits(tiles: int) -> bool:
        return DecodeMatmul(1, tiles, 1, 1, 1, format, WORMHOLE).l1_bytes <= WORMHOLE.matmul_l1

    most = max(first, *others) if others else MAX_LM_HEAD_SHARD
    assert all(tiles == most for tiles in others) and first <= most
    assert most & (most - 1) == 0 and most <= MAX_LM_HEAD_SHARD and fits(most)
    assert most == MAX_LM_HEAD_SHARD or not fits(2 * most)


@pytest.mark.parametrize("grid", [Grid(8, 8), Grid(8, 7)], ids=CHIPS)
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("tiles", [8, 28, 37, 64, 112, 160, 256])
def test_the_residuals_cores_have_equal_shards_and_leave_l1_for_the_all_reduce(tiles, tp, grid):
    cores = grid.residual(tiles, tp)
    assert tiles % cores.cores == 0 and cores.x <= grid.x and cores.y <= grid.y
    if tp > 1:
        assert cores.cores <= grid.cores // 2
    else:
        assert cores.x == grid.x or cores.y == 1, "whole rows, as ttnn lays a matmul's result"


def test_the_7bs_residual_grids_are_those_seen_right_on_chips():
    assert Grid(8, 8).residual(112, 1) == Grid(8, 7).residual(112, 1) == Grid(8, 7)
    assert Grid(8, 8).residual(112, 2) == Grid(8, 8).residual(112, 8) == Grid(7, 4)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
@pytest.mark.parametrize("users", range(1, MAX_USERS + 1))
def test_every_number_of_users_has_its_cores(config, chip, users):
    plan, grid = DecodeLayout.make(config, ParallelPlan.make(config, 2), chip, users), chip.grid
    batch = plan.slots
    assert users <= batch <= MAX_USERS and batch < users + grid.x
    assert batch <= grid.x or batch % grid.x == 0, "the users' cores are no rectangle"
    assert plan.fused_qk == (users <= (32 if grid.cores == 64 else 24)), "q and k of all users on cores of their own"
    assert plan.rotary_users == (2 * batch if plan.fused_qk else batch) <= grid.cores
    for memory, cores, width in (
        (plan.user_memory(config.head_dim), batch, config.head_dim),
        (plan.rotary_memory(config.head_dim), plan.rotary_users, config.head_dim),
        (plan.residual_memory, plan.residual.cores, config.hidden_size // plan.residual.cores),
    ):
        assert (memory.cores, memory.shape) == (cores, (TILE, width))
        assert memory.grid.x <= grid.x and memory.grid.y <= grid.y and cores <= memory.grid.cores


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("sequences", [1, 7, 32])
@pytest.mark.parametrize("max_seq_len", [1, 32, 33, 1000, 1024, 1025, 2048, 4000])
def test_every_sequence_has_blocks_for_its_context(sequences, max_seq_len, block):
    blocks, width = blocks_for(sequences, max_seq_len, block), table_width(max_seq_len, block)
    assert blocks >= width, "the cache update wants a table no wider than the cache"
    served = ceil_div(max_seq_len, block) + 1  # vLLM's fewest, with its block 0
    assert whole_chunks(served, max_seq_len, block) >= width
    assert decode_k_chunk(width * block, BLACKHOLE.k_chunk) == 128, "a shorter chunk hangs there (tt-metal issue 32652)"
    for rows in (32, 512):
        chunked_width = chunked_table_width(width, rows, block)
        assert chunked_width % 8 == 0 and chunked_width * block % 256 == 0, "whole chunks of keys are read"
        assert (chunked_width - width) * block >= rows, "rows of padding read past the longest sequence"
    shares = equal_shares(blocks, sequences)
    assert len({b for share in shares for b in share}) == sum(map(len, shares)), "a block has two owners"
    assert all(len(share) * block >= max_seq_len for share in shares) and width * block >= max_seq_len


def test_a_block_spans_the_shards_of_two_cores():
    assert DecodeMatmul.make(112, 72, 28, "bfloat8_b", WORMHOLE, out_cores=64, divides=4).in0_block_w == 2 * 112 // 28

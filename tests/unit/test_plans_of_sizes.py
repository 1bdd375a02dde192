"""Qwen2.5's sizes, the small checkpoint and Llama-3.1-8B have plans on every split within L1, or a refusal of one line.

The document's table, and what a machine's DRAM holds of a model, are the commands'.
"""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from qwen25_7b_lab.perf.published_models import FAMILIES, QWEN25, SIZES, context_contract, models_table

from models.demos.qwen25_7b.config import BF16, BFP8, PERFORMANCE, QWEN25_7B, RECIPES, DecoderConfig
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.files import read_json
from models.demos.qwen25_7b.plans.blocks import BLOCK, blocks_for
from models.demos.qwen25_7b.plans.chip import WORMHOLE
from models.demos.qwen25_7b.plans.decode_plan import SEMAPHORES, DecodeLayout
from models.demos.qwen25_7b.plans.grids import TILE, TILE_BYTES, Grid, ceil_div
from models.demos.qwen25_7b.plans.l1 import decode_ops, placed, prefill_ops
from models.demos.qwen25_7b.plans.machines import MACHINES
from models.demos.qwen25_7b.plans.memory_budget import memory_budget
from models.demos.qwen25_7b.plans.model_table import ModelTable
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS, SPLITS
from models.demos.qwen25_7b.plans.planner import check_decode, fit_prefill, max_prefill_rows
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from tests.families import config_of, table_of

CHIPS = {"8x8": WORMHOLE, "8x7": replace(WORMHOLE, grid=Grid(8, 7))}
FORMATS = BF16, BFP8, PERFORMANCE
CONFIGS = SIZES | FAMILIES | {"small": config_of("qwen2")}
ALL = [*product([*SIZES, "small"], SPLITS, CHIPS, FORMATS), *product(["Llama-3.1-8B"], SPLITS, ["8x8"], FORMATS)]
HEADS = r"a chip would have (40|64) of the model's \1 query heads, .* take 32: use more chips"
DOWN = r"decode with tp 4: down takes [\d,]+ bytes of a core's L1, [\d,]+ are there: use more chips"
REFUSED = {case: HEADS for case in ALL if case[0] in ("14B", "32B", "72B") and case[1] == 1}
REFUSED["72B", 4, "8x7", BF16] = DOWN
PLANNED = [case for case in ALL if case not in REFUSED]


def name_of(value) -> str | None:
    return getattr(value, "name", None)


def plans_of(model, tp, grid, recipe) -> tuple[ModelTable, DecodeLayout]:
    table = table_of(CONFIGS[model], tp, recipe, CHIPS[grid])
    return table, DecodeLayout.make(table.dims, table.parallel, table.chip, MAX_USERS)


@pytest.mark.parametrize("model, tp, grid, recipe", PLANNED, ids=name_of)
def test_a_size_on_a_split_is_planned(model, tp, grid, recipe):
    """What ttnn does not ask of a plan. tests/splits/test_larger_sizes.py runs plans through ttnn."""
    table, decode = plans_of(model, tp, grid, recipe)
    check_decode(table, decode)
    plans = table.decode_matmuls
    for name, plan in plans.items():
        weight_blocks = 3 * plan.in0_block_w * ceil_div(plan.n_tiles, 12) * TILE_BYTES[plan.weight]
        assert weight_blocks < plan.l1_bytes <= table.chip.matmul_l1 < table.chip.l1, name
    assert max(plans["O"].out_cores, plans["down"].out_cores) <= decode.residual.cores, "a result would be moved"
    assert table.dims.head_dim // TILE % plans["QKV"].per_core_n == 0, "a core's border cuts a head"
    if table.dims in (QWEN25_7B, CONFIGS["small"]):
        assert ("gate + up" in plans) == (table.dims == QWEN25_7B and tp == 8), "it saves padding there"
    footprints = placed(decode_ops(table.layer(0), decode))
    assert max(footprint.bytes for footprint in footprints) <= decode.layer_l1
    normed = table.dims.hidden_size // TILE // decode.residual.cores
    has_buffers = decode.all_reduce.method == "all_reduce_async"
    room = decode.layer_l1 if has_buffers else table.chip.l1 - SEMAPHORES - TILE_BYTES["bfloat16"]
    for matmul in (linear.decode_matmul for linear in table.lm_head):
        assert matmul.l1_bytes + TILE_BYTES["bfloat16"] * (normed + matmul.per_core_n) <= room
    rows = max_prefill_rows(table, decode.layer_l1)
    assert rows >= 128, "weights would be read for every few tokens"
    while rows >= TILE:
        whole = fit_prefill(table.layer(0), rows, decode.layer_l1)
        for matmul in (whole.qkv, whole.o, whole.mlp_in, whole.down):
            assert ceil_div(matmul.n_tiles, matmul.per_core_n) == whole.cores.x, "a column of cores has no columns"
        most = max(op.bytes for cached in (False, True) for op in placed(prefill_ops(whole, cached)))
        assert most <= decode.layer_l1 < table.chip.l1
        rows //= 2


@pytest.mark.parametrize("model, tp, grid, recipe", REFUSED, ids=name_of)
def test_a_size_on_a_split_is_refused(model, tp, grid, recipe):
    plans = plans_of(model, tp, grid, recipe)
    with pytest.raises(UserError, match=REFUSED[model, tp, grid, recipe]) as caught:
        check_decode(*plans)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("tp, refused", [(1, True), (2, False), (8, False)])
def test_32_kv_heads_are_refused_on_one_chip_by_their_number(tp, refused):
    """Llama-2-7B, Vicuna and SmolLM2-1.7B: nlp_create_qkv_heads_decode takes at most one head from a core."""
    config = replace(QWEN25_7B, num_attention_heads=32, num_key_value_heads=32, hidden_size=4096)
    table = table_of(config, tp)
    decode = DecodeLayout.make(config, table.parallel, WORMHOLE, MAX_USERS)
    if not refused:
        check_decode(table, decode)
        return
    with pytest.raises(UserError, match="would have 96 heads of q, k and v, and its 64 cores take one each"):
        check_decode(table, decode)


def test_a_1m_model_has_the_context_of_full_attention():
    """Qwen2.5-7B-Instruct-1M computes longer texts with dual chunk attention, which is not computed here."""
    million = read_json(SMALL_CHECKPOINT / "config.json") | {
        "max_position_embeddings": 1010000,
        "rope_theta": 1e7,
        "dual_chunk_attention_config": {"chunk_size": 262144, "local_size": 8192},
    }
    assert DecoderConfig.from_dict(million).context == 262144


def test_the_table_of_the_document_is_the_commands():
    """To write it again: python -m qwen25_7b_lab.perf models"""
    _, table, _ = models_table(QWEN25, BFP8).split("\n\n")
    assert table in (Path(__file__).parents[2] / "models/demos/qwen25_7b/docs/models.md").read_text()


@pytest.mark.parametrize("positions", [QWEN25_7B.context, 1 << 19])
def test_a_context_contract_claims_what_fits_and_says_what_prevents_more(positions):
    config = replace(QWEN25_7B, max_position_embeddings=positions)
    contract = context_contract(config, RECIPES)
    assert [(entry["machine"], entry["recipe"]) for entry in contract] == [(m, r) for m in MACHINES for r in RECIPES]
    for entry in contract:
        claimed, room = entry["context"], entry["room"]
        assert sum(entry["bytes"].values()) <= room or claimed == 0
        if claimed < positions:
            assert sum(entry["bytes_of_model_context"].values()) > room
            table = table_of(config, entry["tp"], RECIPES[entry["recipe"]], MACHINES[entry["machine"]].chip)
            more = claimed + BLOCK
            assert memory_budget(table, more, blocks_for(1, more, BLOCK)).total > room
    assert {entry["context"] < positions for entry in contract} == {True, False}

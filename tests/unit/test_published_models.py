"""Checkpoints of the Qwen2.5 family are read from their config.json, and planned or refused on each machine."""

from dataclasses import replace
from pathlib import Path

import pytest
from qwen25_7b_lab.perf.published_models import QWEN25, context_contract, models_table

from models.demos.qwen25_7b.config import BFP8, QWEN25_7B, RECIPES, DecoderConfig
from models.demos.qwen25_7b.files import read_json
from models.demos.qwen25_7b.plans.blocks import BLOCK, blocks_for
from models.demos.qwen25_7b.plans.machines import MACHINES
from models.demos.qwen25_7b.plans.memory_budget import memory_budget
from models.demos.qwen25_7b.plans.model_table import ModelTable
from models.demos.qwen25_7b.plans.parallel_plan import ParallelPlan
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT

DOCUMENT = Path(__file__).parents[2] / "models/demos/qwen25_7b/docs/models.md"


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
    assert table in DOCUMENT.read_text()


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
            table = ModelTable(
                config,
                ParallelPlan.make(config, entry["tp"]),
                RECIPES[entry["recipe"]],
                MACHINES[entry["machine"]].chip,
            )
            more = claimed + BLOCK
            assert memory_budget(table, more, blocks_for(1, more, BLOCK)).total > room
    assert {entry["context"] < positions for entry in contract} == {True, False}

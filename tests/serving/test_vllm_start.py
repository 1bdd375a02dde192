"""What vLLM cannot be started with is refused in one line that names the flag; what it is told of memory fits."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from vllm_engine import HFConfig

from models.common.errors import UserError
from models.demos.qwen25_7b.config import BFP8, QWEN25_7B, RECIPES, ParallelPlan
from models.demos.qwen25_7b.plans.blocks import BLOCKS
from models.demos.qwen25_7b.plans.memory_budget import DRAM_BYTES, cache_tokens, memory_budget
from models.demos.qwen25_7b.serving.generator_vllm import QwenForCausalLM
from models.demos.qwen25_7b.serving.vllm_start import capturing


def refusal(mesh_device, checkpoint, rows=32, max_len=512, **options) -> str:
    with pytest.raises(UserError) as caught:
        QwenForCausalLM.initialize_vllm_model(HFConfig(checkpoint), mesh_device, rows, max_seq_len=max_len, **options)
    return str(caught.value)


def test_flags_that_cannot_be(mesh_device, checkpoint):
    assert "--max-num-seqs 32" in refusal(mesh_device, checkpoint, rows=256)
    assert "--max-model-len 4096" in refusal(mesh_device, checkpoint, max_len=8192)
    assert "--data-parallel-size 2" in refusal(mesh_device, checkpoint, tt_data_parallel=2)
    assert "tt.optimizations" in refusal(mesh_device, checkpoint, optimizations="fast")


def test_a_mesh_of_two_rows(checkpoint):
    assert "MESH_DEVICE" in refusal(SimpleNamespace(shape=(2, 4)), checkpoint)


@pytest.fixture(scope="module")
def model(mesh_device, checkpoint):
    """Without caches."""
    return QwenForCausalLM.initialize_vllm_model(HFConfig(checkpoint), mesh_device, 2, max_seq_len=64)


def test_caches_that_cannot_be(model, checkpoint):
    config, heads = checkpoint.config, model.model.plan.kv_heads
    layers = config.num_hidden_layers

    def said(shape, layers=layers) -> str:
        with pytest.raises(UserError) as caught:
            model.allocate_kv_cache(shape, torch.bfloat16, layers)
        return str(caught.value)

    assert "--block-size 32, 64 or 128" in said((100, heads, 16, config.head_dim))
    assert "--max-model-len" in said((10**7, heads, 64, config.head_dim))
    assert "--model" in said((100, heads, 64, config.head_dim), layers + 1)


def test_traces_without_room_for_them():
    with pytest.raises(UserError, match="trace_region_size"), capturing(False):
        pytest.fail("captured")
    metal = "Creating trace buffers of size 9B on MeshDevice 0, but only 4B is allocated for trace region."
    with pytest.raises(UserError, match="trace_region_size"), capturing(True):
        raise RuntimeError(f"TT_FATAL @ mesh_trace.cpp:1: false\ninfo:\n{metal}")
    with pytest.raises(RuntimeError, match="hang"), capturing(True):
        raise RuntimeError("device hang")


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("tp", [1, 2, 8])
def test_the_cache_that_vllm_is_told_of_fits(tp, recipe):
    """And all of the 7B's but bfloat16 weights on one chip leave room for 32 texts of 1,000 tokens."""
    plan, max_len = ParallelPlan.make(QWEN25_7B, tp), 32768
    tokens = cache_tokens(QWEN25_7B, plan, recipe, max_len)
    if (tp, recipe.name) == (1, "bf16"):
        assert tokens == 0
        return
    assert tokens > 32_000
    for block in BLOCKS:
        assert memory_budget(QWEN25_7B, plan, recipe, max_len, tokens // block, block).total < DRAM_BYTES


def test_no_more_memory_is_taken_than_full_contexts_need(monkeypatch, mesh_device, checkpoint):
    def told(seqs, max_len, chips=2) -> int:
        return QwenForCausalLM.get_max_tokens_all_users(
            model_name=f"{checkpoint.directory}", num_devices=chips, tt_data_parallel=1, max_model_len=max_len,
            max_num_seqs=seqs,
        )  # fmt: skip

    assert told(4, 1024) == 4096
    opened = SimpleNamespace(config=replace(QWEN25_7B, max_position_embeddings=131072))
    monkeypatch.setattr("models.demos.qwen25_7b.serving.generator_vllm.open_checkpoint", lambda _: opened)
    monkeypatch.setattr(QwenForCausalLM, "_recipe", BFP8)
    assert told(32, 131072) == cache_tokens(opened.config, ParallelPlan.make(QWEN25_7B, 2), BFP8, 131072) - 32 * 128

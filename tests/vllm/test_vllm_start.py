"""Bad vLLM options are refused in one line that names the flag. The cache reported to vLLM fits."""

from dataclasses import replace
from inspect import Parameter, signature
from types import SimpleNamespace

import pytest
import torch

from models.demos.qwen25_7b.config import QWEN25_7B, RECIPES
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.plans.blocks import BLOCKS
from models.demos.qwen25_7b.plans.chip import WORMHOLE
from models.demos.qwen25_7b.plans.memory_budget import cache_tokens, memory_budget
from models.demos.qwen25_7b.vllm.generator_vllm import QwenForCausalLM
from models.demos.qwen25_7b.vllm.startup import full_cache_tokens
from tests.families import table_of
from tests.vllm.vllm_engine import Engine
from tests.vllm.vllm_requests import NEW_TOKENS, greedy, hf_config, requests, start


def refusal(mesh_device, checkpoint, slots=32, **options) -> str:
    with pytest.raises(UserError) as caught:
        QwenForCausalLM.initialize_vllm_model(hf_config(checkpoint), mesh_device, slots, max_seq_len=512, **options)
    return str(caught.value)


def test_a_mesh_of_two_rows(checkpoint):
    assert "MESH_DEVICE" in refusal(SimpleNamespace(shape=(2, 4)), checkpoint)


@pytest.mark.parametrize("max_len, slots, block", [(300, 1, 64), (40, 2, 32)])
def test_a_cache_of_fewer_blocks_than_a_whole_table(
    mesh_device, checkpoint, hf, prompts, tokenizer, max_len, slots, block, host_alone
):
    """Block tables are as wide as the cache. Long prompts get Hugging Face's tokens."""
    blocks = -(-max_len // block) + 1
    size = dict(slots=slots, max_len=max_len, block=block, blocks=blocks)
    served = start(mesh_device, checkpoint, host_alone, **size, trace=False)
    fitting = [prompt for prompt in prompts if len(prompt) + NEW_TOKENS <= max_len]
    some = [fitting[0], max(fitting, key=len)]
    engine = Engine(*served, block, slots=slots, max_len=max_len, trace=False)
    expected = [greedy(hf, prompt, tokenizer.stop_ids) for prompt in some]
    assert engine.serve(requests(some, tokenizer)) == expected


FEW_TOKENS = 5


@pytest.mark.parametrize("sequences", [9, 17, 31])
def test_a_full_batch_of_any_size(mesh_device, checkpoint, hf, prompts, tokenizer, sequences, host_alone):
    """The model's slots are whole rows of cores: 16, 24 or 32. The plugin's calls have a row for each sequence."""
    size = dict(slots=sequences, max_len=256)
    served = start(mesh_device, checkpoint, host_alone, block=64, trace=False, **size)
    some = [prompts[0], *(prompts[i % 30] for i in range(sequences))]
    expected = [greedy(hf, prompt, tokenizer.stop_ids)[:FEW_TOKENS] for prompt in some]
    for how in ({"ahead": 2}, {"device": False}):
        engine = Engine(*served, 64, trace=False, **size, **how)
        assert engine.serve([replace(one, new_tokens=FEW_TOKENS) for one in requests(some, tokenizer)]) == expected


@pytest.fixture(scope="module")
def model(mesh_device, checkpoint):
    """A model without caches."""
    return QwenForCausalLM.initialize_vllm_model(hf_config(checkpoint), mesh_device, 2, max_seq_len=64)


@pytest.mark.parametrize(
    "blocks, block, named",
    [(100, 16, "--block-size must be 32, 64 or 128"), (10**7, 64, "--max-model-len"), (2, 32, "--max-model-len")],
)
def test_impossible_cache_sizes_are_refused(model, checkpoint, blocks, block, named):
    config = checkpoint.config
    shape = blocks, model.model.model_config.parallel.kv_heads, block, config.head_dim
    with pytest.raises(UserError, match=named):
        model.allocate_kv_cache(shape, torch.bfloat16, config.num_hidden_layers)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("tp", [1, 2, 8])
def test_the_cache_size_reported_to_vllm_fits(tp, recipe):
    """The 7B leaves room for 32 sequences of 1,000 tokens, except in bf16 on one chip."""
    table, max_len = table_of(QWEN25_7B, tp, recipe), 32768
    tokens = cache_tokens(table, max_len)
    if (tp, recipe.name) == (1, "bf16"):
        assert tokens == 0
        return
    assert tokens > 32_000
    for block in BLOCKS:
        assert memory_budget(table, max_len, tokens // block, block).total < WORMHOLE.dram_bytes


def test_no_more_memory_is_allocated_than_full_contexts_need(model):
    assert model.get_max_tokens_all_users(model_name="", num_devices=2, max_model_len=64, max_num_seqs=2) == 128
    table = table_of(replace(QWEN25_7B, max_position_embeddings=131072), 2)
    assert full_cache_tokens(table, 1024, 4) == 4096
    assert full_cache_tokens(table, 131072, 32) == cache_tokens(table, 131072) - 32 * 128


def test_arguments_of_a_later_plugin_are_ignored(mesh_device, checkpoint):
    """A TypeError in a step would end the engine."""
    later = dict(argument_of_a_later_plugin=1)
    assert "--max-num-seqs" in refusal(mesh_device, checkpoint, slots=256, **later)
    names = (
        "get_max_tokens_all_users", "allocate_kv_cache", "warmup_model_prefill", "warmup_model_decode",
        "prefill_forward", "decode_forward", "read_decode_output", "process_decode_output_host",
    )  # fmt: skip
    for name in names:
        parameters = signature(getattr(QwenForCausalLM, name)).parameters.values()
        assert any(p.kind is Parameter.VAR_KEYWORD for p in parameters), name

"""Bad vLLM options are refused in one line that names the flag. The cache reported to vLLM fits."""

from dataclasses import replace
from inspect import Parameter, signature
from types import SimpleNamespace

import pytest
import torch
from vllm_engine import Engine
from vllm_requests import NEW_TOKENS, HFConfig, greedy, requests, start

from models.common.errors import UserError
from models.demos.qwen25_7b.config import BFP8, QWEN25_7B, RECIPES, ParallelPlan
from models.demos.qwen25_7b.plans.blocks import BLOCKS
from models.demos.qwen25_7b.plans.memory_budget import DRAM_BYTES, cache_tokens, memory_budget
from models.demos.qwen25_7b.serving.generator_vllm import QwenForCausalLM
from models.demos.qwen25_7b.serving.vllm_startup import (
    capturing,
    check_vllm_options,
    log_loading,
)


def refusal(mesh_device, checkpoint, slots=32, max_len=512, **options) -> str:
    with pytest.raises(UserError) as caught:
        QwenForCausalLM.initialize_vllm_model(
            HFConfig(checkpoint), mesh_device, slots, max_seq_len=max_len, **options
        )
    return str(caught.value)


def test_impossible_flags_are_refused(mesh_device, checkpoint):
    assert "--max-num-seqs 32" in refusal(mesh_device, checkpoint, slots=256)
    assert "--max-model-len 4096" in refusal(mesh_device, checkpoint, max_len=8192)
    assert "--data-parallel-size 2" in refusal(mesh_device, checkpoint, tt_data_parallel=2)
    assert "tt.optimizations" in refusal(mesh_device, checkpoint, optimizations="fast")


def test_a_mesh_of_two_rows(checkpoint):
    assert "MESH_DEVICE" in refusal(SimpleNamespace(shape=(2, 4)), checkpoint)


@pytest.mark.parametrize("max_len, slots, block", [(300, 1, 64), (40, 2, 32)])
def test_a_cache_of_fewer_blocks_than_a_whole_table(
    mesh_device, checkpoint, hf, prompts, tokenizer, max_len, slots, block
):
    """Block tables are as wide as the cache. Long prompts get Hugging Face's tokens."""
    blocks = -(-max_len // block) + 1
    served = start(
        QwenForCausalLM, mesh_device, checkpoint,
        slots=slots, max_len=max_len, block=block, blocks=blocks, trace=False,
    )  # fmt: skip
    fitting = [prompt for prompt in prompts if len(prompt) + NEW_TOKENS <= max_len]
    some = [fitting[0], max(fitting, key=len)]
    engine = Engine(*served, block, slots=slots, max_len=max_len, trace=False)
    expected = [greedy(hf, prompt, tokenizer.stop_ids) for prompt in some]
    assert engine.serve(requests(some, tokenizer)) == expected


def options(**changes) -> SimpleNamespace:
    """Return the checked part of vLLM's VllmConfig, with defaults and changes."""
    fields = dict(
        quantization=None, dtype=torch.bfloat16, revision=None, code_revision=None,
        tokenizer_revision=None, hf_config_path=None, cache_dtype="auto", load_format="auto", tt={},
        logprobs_mode="raw_logprobs", enable_prompt_embeds=False,
    )  # fmt: skip
    fields |= changes
    return SimpleNamespace(
        model_config=SimpleNamespace(**fields),
        cache_config=SimpleNamespace(**fields),
        load_config=SimpleNamespace(**fields),
        additional_config={"tt": fields["tt"]},
    )


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(quantization="fp8"), "--quantization fp8"),
        (dict(logprobs_mode="processed_logprobs"), "--logprobs-mode processed_logprobs"),
        (dict(enable_prompt_embeds=True), "--enable-prompt-embeds True"),
        (dict(dtype=torch.float16), "--dtype float16"),
        (dict(cache_dtype="fp8"), "--kv-cache-dtype fp8"),
        (dict(load_format="dummy"), "--load-format dummy"),
        (
            dict(revision="v1", tokenizer_revision="v2"),
            "--tokenizer-revision v2: .* use --revision",
        ),
        (dict(hf_config_path="x"), "--hf-config-path x"),
        (dict(tt={"trace_regoin_size": 1}), "trace_regoin_size .*trace_region_size"),
        (dict(tt={"speed": 1}), "tt.speed .*trace_mode"),
        (
            dict(tt={"trace_mode": "some"}),
            "trace_mode must be all, decode_only or none, got 'some'",
        ),
    ],
)
def test_options_of_vllm_that_would_be_ignored_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        check_vllm_options(options(**changes))


def test_options_of_vllm_that_change_nothing_are_accepted():
    taken = {"trace_mode": "none", "sample_on_device_mode": "all", "l1_small_size": 16384}
    check_vllm_options(options(dtype=torch.float32, load_format="safetensors", tt=taken))
    check_vllm_options(options(revision="v1", tokenizer_revision="v1"))
    check_vllm_options(None)  # outside vLLM


@pytest.fixture(scope="module")
def model(mesh_device, checkpoint):
    """A model without caches."""
    return QwenForCausalLM.initialize_vllm_model(
        HFConfig(checkpoint), mesh_device, 2, max_seq_len=64
    )


def test_impossible_cache_sizes_are_refused(model, checkpoint):
    config, heads = checkpoint.config, model.model.config.parallel.kv_heads
    layers = config.num_hidden_layers

    def message(shape, layers=layers) -> str:
        with pytest.raises(UserError) as caught:
            model.allocate_kv_cache(shape, torch.bfloat16, layers)
        return str(caught.value)

    assert "--block-size 32, 64 or 128" in message((100, heads, 16, config.head_dim))
    assert "--max-model-len" in message((10**7, heads, 64, config.head_dim))
    assert "--model" in message((100, heads, 64, config.head_dim), layers + 1)
    assert "--max-model-len" in message((2, heads, 32, config.head_dim))


def test_a_trace_region_that_is_too_small():
    with pytest.raises(UserError, match="trace_region_size"), capturing(False):
        pytest.fail("captured")
    metal = "Creating trace buffers of size 9B on MeshDevice 0, but only 4B is allocated for trace region."
    with pytest.raises(UserError, match="trace_region_size"), capturing(True):
        raise RuntimeError(f"TT_FATAL @ mesh_trace.cpp:1: false\ninfo:\n{metal}")
    with pytest.raises(RuntimeError, match="hang"), capturing(True):
        raise RuntimeError("device hang")


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("tp", [1, 2, 8])
def test_the_cache_size_reported_to_vllm_fits(tp, recipe):
    """The 7B leaves room for 32 sequences of 1,000 tokens, except in bf16 on one chip."""
    plan, max_len = ParallelPlan.make(QWEN25_7B, tp), 32768
    tokens = cache_tokens(QWEN25_7B, plan, recipe, max_len)
    if (tp, recipe.name) == (1, "bf16"):
        assert tokens == 0
        return
    assert tokens > 32_000
    for block in BLOCKS:
        assert (
            memory_budget(QWEN25_7B, plan, recipe, max_len, tokens // block, block).total
            < DRAM_BYTES
        )


def test_no_more_memory_is_allocated_than_full_contexts_need(monkeypatch, mesh_device, checkpoint):
    def reported(seqs, max_len, chips=2) -> int:
        return QwenForCausalLM.get_max_tokens_all_users(
            model_name=f"{checkpoint.directory}", num_devices=chips, tt_data_parallel=1, max_model_len=max_len,
            max_num_seqs=seqs,
        )  # fmt: skip

    assert reported(4, 1024) == 4096
    opened = SimpleNamespace(config=replace(QWEN25_7B, max_position_embeddings=131072))
    monkeypatch.setattr(
        "models.demos.qwen25_7b.serving.generator_vllm.open_checkpoint",
        lambda name, revision: opened,
    )
    monkeypatch.setattr(QwenForCausalLM, "_recipe", BFP8)
    assert (
        reported(32, 131072)
        == cache_tokens(opened.config, ParallelPlan.make(QWEN25_7B, 2), BFP8, 131072) - 32 * 128
    )


def test_the_revision_of_vllm_reaches_the_weights(mesh_device, checkpoint, monkeypatch):
    given = []

    def open_checkpoint(name, revision):
        given.append(revision)
        raise UserError("enough")

    module = "models.demos.qwen25_7b.serving.generator_vllm"
    monkeypatch.setattr(f"{module}.open_checkpoint", open_checkpoint)
    revision = options(revision="v1", tokenizer_revision="v1")
    monkeypatch.setattr(f"{module}.current_vllm_config", lambda: revision)
    monkeypatch.setattr(QwenForCausalLM, "_revision", None)
    refusal(mesh_device, checkpoint)
    with pytest.raises(UserError, match="enough"):
        QwenForCausalLM.get_max_tokens_all_users(
            model_name="", num_devices=2, tt_data_parallel=1, max_model_len=64, max_num_seqs=1
        )
    assert given == ["v1", "v1"]


def test_loading_logs_a_line_at_times_and_one_at_the_end(monkeypatch, caplog):
    clock = iter([0.0, 1.0, 11.0, 12.0, 13.0])
    monkeypatch.setattr(
        "models.demos.qwen25_7b.serving.vllm_startup.time",
        SimpleNamespace(monotonic=lambda: next(clock)),
    )
    caplog.set_level("INFO", "vllm.qwen25_7b")
    progress = log_loading()
    for gigabytes in (1, 2, 3, 4):
        progress(gigabytes * 10**9, 4 * 10**9)
    assert [record.getMessage() for record in caplog.records] == [
        "Weights on the chips: 2.00 of 4.00 GB, 11 s",
        "Weights on the chips: 4.00 of 4.00 GB, 13 s",
    ]


def test_arguments_of_a_later_plugin_are_ignored(mesh_device, checkpoint):
    """A TypeError in a step would end the engine."""
    later = dict(argument_of_a_later_plugin=1)
    assert "--max-num-seqs 32" in refusal(mesh_device, checkpoint, slots=256, **later)
    names = (
        "get_max_tokens_all_users", "allocate_kv_cache", "warmup_model_prefill", "warmup_model_decode",
        "prefill_forward", "decode_forward", "read_decode_output", "process_decode_output_host",
    )  # fmt: skip
    for name in names:
        parameters = signature(getattr(QwenForCausalLM, name)).parameters.values()
        assert any(p.kind is Parameter.VAR_KEYWORD for p in parameters), name

"""QwenForCausalLM gives Hugging Face's tokens under the calls of Tenstorrent's vLLM plugin: a table of ways."""

import json
from pathlib import Path

import pytest
import torch

from models.demos.qwen25_7b import vllm
from models.demos.qwen25_7b.config.decoder_config import FAMILIES
from tests.vllm.vllm_engine import Engine, engine
from tests.vllm.vllm_requests import MAX_LEN, NEW_TOKENS, SLOTS, greedy, requests

# (the plugin's way, which of the 48 prompts). Two steps in flight: vLLM's tokens and positions are one step behind.
WAYS = {
    "more requests than slots": ({}, slice(48)),
    "two steps in flight": (dict(ahead=2), slice(20)),
    "logits for vLLM's sampler": (dict(device=False, trace=False, ahead=2), slice(6)),
    "no traces": (dict(trace=False), slice(6)),
    "prefixes of running sequences and of one call": (dict(prefix_caching=True, ahead=2), slice(38, 46)),
    "decode steps that come as prefills": (dict(decode_as_prefill=True), slice(0, 42, 13)),
}


@pytest.fixture(scope="module")
def expected(hf, prompts, tokenizer) -> list[list[int]]:
    return [greedy(hf, prompt, tokenizer.stop_ids) for prompt in prompts]


@pytest.mark.parametrize("way", WAYS)
def test_tokens_are_hugging_faces(served, prompts, expected, tokenizer, hf, way):
    options, some = WAYS[way]
    busy = engine(served, **options)
    assert busy.serve(requests(prompts[some], tokenizer)) == expected[some]
    assert busy.overlapped > 0 or busy.ahead == 1 or not busy.device
    if busy.prefix_caching:  # and of finished ones
        known = busy.hits
        assert busy.serve(requests(prompts[some], tokenizer)) == expected[some] and busy.hits > known + 5
        long = prompts[-1]
        twins = [long, long, long[:-2] + prompts[0], long[:137]]
        assert busy.serve(requests(twins, tokenizer)) == [greedy(hf, t, tokenizer.stop_ids) for t in twins]


def test_blocks_run_short(served, tight, tokenizer, hf):
    """A preempted request comes back as a prompt in the middle of its answer."""
    model, caches, _ = served
    small_cache = Engine(model, caches, 9, 64, slots=SLOTS, max_len=MAX_LEN, ahead=2)
    answers = small_cache.serve(requests(tight, tokenizer))
    assert answers == [greedy(hf, prompt, tokenizer.stop_ids) for prompt in tight]
    assert small_cache.preempted > 2


def test_prefixes_of_any_length(served, prompts, expected):
    """start_pos need not be the start of a block."""
    model, caches, _ = served
    prompt, table = prompts[-1], torch.arange(1, 9, dtype=torch.int32)[None]
    for start in (1, 37, 64, len(prompt) - 1):
        for begin, end in ((0, start), (start, len(prompt))):
            logits = model.prefill_forward(
                tokens=torch.tensor([prompt + [7] * 9]), page_table=table, kv_cache=caches, enable_trace=True,
                prompt_lens=[end], start_pos=[begin], empty_slots=[0],
            )  # fmt: skip
        assert int(logits[0, -1].argmax()) == expected[-1][0]


@pytest.mark.parametrize("ahead", [1, 2])
def test_the_chips_sample_again_after_steps_that_vllm_sampled(served, prompts, tokenizer, ahead):
    """Host-sampled steps use up reset_batch, and their tokens differ from the chips' samples."""

    def host_sampler(request, logits) -> int:
        ranked = logits.sort(descending=True, stable=True).indices  # of equal logits the lowest token, as on the chips
        return int(ranked[int(len(request.answer) < 4)])

    switching = engine(served, ahead=ahead, host_sampler=host_sampler)
    answers = switching.serve(requests(prompts[:4], tokenizer, host_until=4))
    assert answers == engine(served, device=False, host_sampler=host_sampler).serve(requests(prompts[:4], tokenizer))
    assert switching.resumed_on_device


def test_structured_output_beside_other_requests(served, prompts, expected, tokenizer):
    """vLLM masks and samples each step that has a structured request; the chips take over when it ends."""
    allowed = [5, 77, 300]
    some = requests(prompts[:5], tokenizer)
    structured = some[3]
    structured.host_until, structured.new_tokens = NEW_TOKENS, 5

    def host_sampler(request, logits) -> int:
        return allowed[int(logits[allowed].argmax())] if request is structured else int(logits.argmax())

    busy = engine(served, ahead=2, host_sampler=host_sampler)
    *first, fourth, fifth = busy.serve(some)
    assert [*first, fifth] == [*expected[:3], expected[4]]
    assert set(fourth) <= {*allowed} and len(fourth) == 5
    assert busy.overlapped


def test_nothing_is_compiled_after_the_warm_up(served, prompts, tokenizer, monkeypatch):
    """A new program's buffers would overlap the temporaries of a trace."""
    model, _, _ = served
    monkeypatch.setattr(model.replica, "close", lambda: pytest.fail("traces were given up for something new"))
    longest = [sum(prompts, [])[: MAX_LEN - NEW_TOKENS]]
    engine(served, prefix_caching=True).serve(requests(prompts[::6] + longest, tokenizer))
    engine(served, device=False).serve(requests(longest, tokenizer))


def test_every_architecture_has_a_folder_for_the_plugin():
    files = (Path(vllm.__path__[0]) / "extra_models").glob("*/vllm_metadata.json")
    found = [json.loads(file.read_text()) for file in files]
    assert {entry["arch"] for entry in found} == {f.architecture for f in FAMILIES.values()}
    assert {entry["main_class"] for entry in found} == {"qwen25_7b_for_vllm:QwenForCausalLM"}

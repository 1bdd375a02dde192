"""QwenForCausalLM gives Hugging Face's tokens under the calls of Tenstorrent's vLLM plugin."""

import pytest
import torch
from vllm_engine import Engine, engine
from vllm_requests import MAX_LEN, NEW_TOKENS, SLOTS, greedy, requests


@pytest.fixture(scope="module")
def expected(hf, prompts, tokenizer) -> list[list[int]]:
    return [greedy(hf, prompt, tokenizer.stop_ids) for prompt in prompts]


def test_48_requests_through_32_slots(served, prompts, expected, tokenizer):
    assert engine(served).serve(requests(prompts, tokenizer)) == expected


def test_two_steps_in_flight(served, prompts, expected, tokenizer):
    """vLLM's tokens and positions are then one step behind."""
    busy = engine(served, ahead=2)
    assert busy.serve(requests(prompts[:40], tokenizer)) == expected[:40]
    assert busy.overlapped > NEW_TOKENS


@pytest.mark.parametrize("options", [{"trace": False}, {"device": False, "trace": False, "ahead": 2}])
def test_logits_for_vllms_sampler_and_no_traces(served, prompts, expected, tokenizer, options):
    assert engine(served, **options).serve(requests(prompts[:12], tokenizer)) == expected[:12]


def test_blocks_run_short(served, tight, tokenizer):
    """A preempted request comes back as a prompt in the middle of its answer."""
    model, caches, _ = served
    alone = engine(served).serve(requests(tight, tokenizer))
    for ahead in (1, 2):
        small_cache = Engine(model, caches, 9, 64, slots=SLOTS, max_len=MAX_LEN, ahead=ahead)
        assert small_cache.serve(requests(tight, tokenizer)) == alone
        assert small_cache.preempted > 2


def test_cached_prefixes_are_reused(served, prompts, expected, tokenizer):
    """Prefixes of finished sequences, of running sequences, and of prompts of the same call."""
    known = engine(served, prefix_caching=True, ahead=2)
    assert known.serve(requests(prompts[40:46], tokenizer)) == expected[40:46]
    before = known.hits
    assert known.serve(requests(prompts[38:46], tokenizer)) == expected[38:46] and known.hits > before + 5
    long = prompts[-1]
    twins = [long, long, long[:-2] + prompts[0], long[:137]]
    alone = [engine(served).serve(requests([prompt], tokenizer))[0] for prompt in twins]
    assert engine(served, prefix_caching=True, ahead=2).serve(requests(twins, tokenizer)) == alone


def test_prefixes_of_any_length(served, prompts, expected, tokenizer):
    """start_pos need not be the start of a block."""
    model, caches, _ = served
    prompt, table = prompts[-1], torch.arange(1, 9, dtype=torch.int32)[None]
    for start in (1, 31, 37, 64, 100, 128, 200, len(prompt) - 1):
        for begin, end in ((0, start), (start, len(prompt))):
            logits = model.prefill_forward(
                tokens=torch.tensor([prompt + [7] * 9]), page_table=table, kv_cache=caches, enable_trace=True,
                prompt_lens=[end], start_pos=[begin], empty_slots=[0],
            )  # fmt: skip
        assert int(logits[0, -1].argmax()) == expected[-1][0]


def test_decode_steps_that_come_as_prefills(served, prompts, expected, tokenizer):
    """The plugin's main and stable branches send decode steps as prefills."""
    some = [0, 13, 25, 41]
    engine_of_main = engine(served, decode_as_prefill=True)
    assert engine_of_main.serve(requests([prompts[i] for i in some], tokenizer)) == [expected[i] for i in some]


@pytest.mark.parametrize("ahead", [1, 2])
def test_the_chips_sample_again_after_steps_that_vllm_sampled(served, prompts, tokenizer, ahead):
    """Host-sampled steps use up reset_batch, and their tokens differ from the chips' samples."""

    def host_sampler(request, logits) -> int:
        ranked = logits.sort(descending=True, stable=True).indices  # of equal logits the lowest token, as on the chips
        return int(ranked[int(len(request.answer) < 4)])

    switching = engine(served, ahead=ahead, host_sampler=host_sampler)
    answers = switching.serve(requests(prompts[:6], tokenizer, host_until=4))
    assert answers == engine(served, device=False, host_sampler=host_sampler).serve(requests(prompts[:6], tokenizer))
    assert switching.resumed_on_device


def test_structured_output_beside_other_requests(served, prompts, expected, tokenizer):
    """vLLM masks and samples each step that has a structured request; the chips take over when it ends."""
    allowed = [5, 77, 300]
    some = requests(prompts[:8], tokenizer)
    structured = some[3]
    structured.host_until, structured.new_tokens = NEW_TOKENS, 5

    def host_sampler(request, logits) -> int:
        return allowed[int(logits[allowed].argmax())] if request is structured else int(logits.argmax())

    busy = engine(served, ahead=2, host_sampler=host_sampler)
    answers = busy.serve(some)
    assert [answers[i] for i in range(8) if i != 3] == [expected[i] for i in range(8) if i != 3]
    assert set(answers[3]) <= {*allowed} and len(answers[3]) == 5
    assert busy.overlapped


def test_nothing_is_compiled_after_the_warm_up(served, prompts, tokenizer, monkeypatch):
    """A new program's buffers would overlap the temporaries of a trace."""
    model, _, _ = served
    monkeypatch.setattr(model.replica, "close", lambda: pytest.fail("traces were given up for something new"))
    longest = [sum(prompts, [])[: MAX_LEN - NEW_TOKENS]]
    engine(served, prefix_caching=True).serve(requests(prompts[::3] + longest, tokenizer))
    engine(served, device=False).serve(requests(longest, tokenizer))

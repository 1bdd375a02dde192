"""QwenForCausalLM under the calls of Tenstorrent's vLLM plugin: everybody gets Hugging Face's text, whatever the engine does."""

import pytest
import torch
from vllm_engine import MAX_LEN, NEW_TOKENS, ROWS, Engine, engine, greedy, requests


@pytest.fixture(scope="module")
def expected(hf, prompts, text) -> list[list[int]]:
    return [greedy(hf, prompt, text.stop_ids) for prompt in prompts]


def test_48_requests_through_32_rows(served, prompts, expected, text):
    assert engine(served).serve(requests(prompts, text)) == expected


def test_two_steps_in_flight(served, prompts, expected, text):
    """vLLM's tokens and positions are a step behind then."""
    busy = engine(served, ahead=2)
    assert busy.serve(requests(prompts[:40], text)) == expected[:40]
    assert busy.overlapped > NEW_TOKENS


@pytest.mark.parametrize(
    "options", [{"device": False}, {"trace": False}, {"device": False, "trace": False, "ahead": 2}]
)
def test_logits_for_vllm_to_choose_from_and_no_traces(served, prompts, expected, text, options):
    assert engine(served, **options).serve(requests(prompts[:34], text)) == expected[:34]


@pytest.fixture(scope="module")
def tight(prompts) -> list[list[int]]:
    """Of nearly a block each, so that all of them want another one in the middle of their answers."""
    return [sum(prompts[i : i + 4], []) for i in range(10, 22)]


def test_blocks_run_short(served, tight, text):
    """A text whose blocks were taken comes back as a prompt, in its middle."""
    model, caches, _ = served
    alone = engine(served).serve(requests(tight, text))
    for ahead in (1, 2):
        crowded = Engine(model, caches, 9, 64, rows=ROWS, max_len=MAX_LEN, ahead=ahead)
        assert crowded.serve(requests(tight, text)) == alone
        assert crowded.preempted > 2


def test_beginnings_that_the_cache_holds(served, prompts, expected, text):
    """Of earlier texts, of texts that are written at the time, and of prompts of the same call."""
    known = engine(served, prefix_caching=True, ahead=2)
    assert known.serve(requests(prompts[40:46], text)) == expected[40:46]
    before = known.hits
    assert known.serve(requests(prompts[38:46], text)) == expected[38:46] and known.hits > before + 5
    long = prompts[-1]
    twins = [long, long, long[:-2] + prompts[0], long[:129]]
    alone = [engine(served).serve(requests([prompt], text))[0] for prompt in twins]
    assert engine(served, prefix_caching=True, ahead=2).serve(requests(twins, text)) == alone


def test_beginnings_of_any_length(served, prompts, expected, text):
    """start_pos need not be where a block begins."""
    model, caches, _ = served
    prompt, table = prompts[-1], torch.arange(1, 9, dtype=torch.int32)[None]
    for start in (1, 31, 37, 64, 100, 128, 200, len(prompt) - 1):
        for begin, end in ((0, start), (start, len(prompt))):
            logits = model.prefill_forward(
                tokens=torch.tensor([prompt + [7] * 9]), page_table=table, kv_cache=caches, enable_trace=True,
                prompt_lens=[end], start_pos=[begin], empty_slots=[0],
            )  # fmt: skip
        assert int(logits[0, -1].argmax()) == expected[-1][0]


def test_decode_steps_that_come_as_prefills(served, prompts, expected, text):
    """As the plugin's main and stable send them."""
    some = [0, 13, 25, 41]
    engine_of_main = engine(served, decode_as_prefill=True)
    assert engine_of_main.serve(requests([prompts[i] for i in some], text)) == [expected[i] for i in some]


@pytest.mark.parametrize("ahead", [1, 2])
def test_the_chips_choose_again_after_steps_that_vllm_chose_in(served, prompts, text, ahead):
    """reset_batch has been used up by those steps, and vLLM has chosen otherwise than the chips."""

    def chooser(request, logits) -> int:
        likeliest = logits.sort(descending=True, stable=True).indices  # of equal ones the lowest, as the chips take it
        return int(likeliest[int(len(request.answer) < 4)])

    switching = engine(served, ahead=ahead, chooser=chooser)
    answers = switching.serve(requests(prompts[:6], text, host_until=4))
    assert answers == engine(served, device=False, chooser=chooser).serve(requests(prompts[:6], text))
    assert switching.resumed_on_device


def test_nothing_is_compiled_after_the_warm_up(served, prompts, text, monkeypatch):
    """What a program keeps would lie where a trace has its temporaries."""
    model, _, _ = served
    monkeypatch.setattr(model.replica, "close", lambda: pytest.fail("traces were given up for something new"))
    longest = [sum(prompts, [])[: MAX_LEN - NEW_TOKENS]]
    engine(served, prefix_caching=True).serve(requests(prompts[::3] + longest, text))
    engine(served, device=False).serve(requests(longest, text))

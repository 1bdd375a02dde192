"""Requests with different sampling parameters share a batch. Each gets the tokens it gets alone."""

import pytest
import torch

from models.demos.qwen25_7b.config.sampling import SamplingParams
from models.demos.qwen25_7b.engine.sampling import TokenCounts
from tests.generation import sample
from tests.vllm.vllm_engine import Engine, engine
from tests.vllm.vllm_requests import MAX_LEN, NEW_TOKENS, SLOTS, TTSamplingParams, greedy, requests

EVERYTHING = 1056  # the small checkpoint's vocabulary size: the plugin's value for top_k off


def make_requests(prompts, tokenizer, samplings) -> list:
    found = requests(prompts, tokenizer)
    for request, sampling in zip(found, samplings, strict=True):
        request.sampling = sampling
    return found


def ours(request, logits) -> int:
    """Return the token that the class should sample from these logits."""
    s = request.sampling
    top_k, top_p = (1, 1.0) if s.top_k == 1 else (0 if s.top_k == EVERYTHING else s.top_k, s.top_p)
    penalties = s.repetition_penalty, s.presence_penalty, s.frequency_penalty
    sampling = SamplingParams(s.temperature, top_k, top_p, s.seed, *penalties)
    counts = TokenCounts(request.prompt, request.answer)
    return sample(logits, sampling, s.seed or 0, len(request.tokens), counts)


SAMPLINGS = (
    TTSamplingParams(),
    TTSamplingParams(1.0, top_k=20, top_p=0.8, seed=1),
    TTSamplingParams(1.0, top_k=EVERYTHING, seed=2),
    TTSamplingParams(1.5, top_k=100, top_p=0.95, seed=3),
    TTSamplingParams(1.0, top_k=1, seed=4),
    # Qwen2.5-7B-Instruct's own
    TTSamplingParams(0.7, top_k=20, top_p=0.8, repetition_penalty=1.05, seed=5),
    TTSamplingParams(0.0, top_k=EVERYTHING, presence_penalty=1.5),
    TTSamplingParams(1.0, top_k=EVERYTHING, frequency_penalty=0.5, presence_penalty=-0.5, seed=2**31 - 1),
)


FULL = SAMPLINGS[2], SAMPLINGS[7]  # any token of the vocabulary may be sampled


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("selected", [range(8), (0, 1, 4), (0, 1, 2, 3)], ids=["all", "on the chips", "no penalties"])
def test_every_option_beside_every_other(served, prompts, tokenizer, ahead, selected):
    """Sampled tokens equal the host sampler's from the same logits. Steps overlap once no request has penalties."""
    samplings = [SAMPLINGS[i] for i in selected]
    some = prompts[20 : 20 + len(samplings)]

    def made() -> list:
        found = make_requests(some, tokenizer, samplings)
        for request in found:
            request.new_tokens -= 4 * request.penalized
        return found

    busy = engine(served, ahead=ahead)
    answers = busy.serve(made())
    expected = engine(served, device=False, host_sampler=ours).serve(made())
    for i, sampling in enumerate(samplings):
        if sampling in FULL:  # the chips sample it in another way, alone with the same token
            expected[i : i + 1] = engine(served).serve(made()[i : i + 1])
    assert answers == expected
    assert busy.overlapped or ahead == 1


def test_a_seeded_request_gives_the_same_text_in_any_batch(served, tight, tokenizer):
    """In another slot, beside other requests, and after a preemption in its middle."""
    model, caches, _ = served
    tight = tight[:10]
    samplings = [
        TTSamplingParams(presence_penalty=20.0)
        if i % 2
        else TTSamplingParams(1.0, (20, EVERYTHING)[i % 4 // 2], seed=i)
        for i in range(10)
    ]
    roomy = engine(served).serve(make_requests(tight, tokenizer, samplings))
    assert roomy[3:5] == engine(served).serve(make_requests(tight[3:5], tokenizer, samplings[3:5]))
    small_cache = Engine(model, caches, 9, 64, slots=SLOTS, max_len=MAX_LEN, ahead=2)
    assert small_cache.serve(make_requests(tight, tokenizer, samplings)) == roomy and small_cache.preempted


def test_unseeded_answers_differ(served, prompts, tokenizer):
    hot = TTSamplingParams(10.0, top_k=32)
    answers = engine(served).serve(make_requests([prompts[0]] * 4, tokenizer, [hot] * 4))
    assert len(set(map(tuple, answers))) == 4


def test_penalties_cost_no_logits(served, prompts, tokenizer, monkeypatch):
    """The chips sample: no logits are read. Steps with a repetition penalty still overlap."""
    model, _, _ = served
    monkeypatch.setattr(model.replica, "read_logits", lambda: pytest.fail("logits were read"))
    samplings = [SAMPLINGS[5], TTSamplingParams(), TTSamplingParams(repetition_penalty=1.3)]
    busy = engine(served, ahead=2)
    busy.serve(make_requests(prompts[:3], tokenizer, samplings))
    assert busy.overlapped
    engine(served).serve(make_requests(prompts[:2], tokenizer, [TTSamplingParams(presence_penalty=1.0)] * 2))


@torch.no_grad()
def openais(hf, prompt, stop_ids, presence_penalty=0.0, frequency_penalty=0.0) -> list[int]:
    """The greedy answer by OpenAI's formula: logit - count * frequency - (count > 0) * presence.

    count: occurrences of the token in the answer.
    """
    answer = []
    while len(answer) < NEW_TOKENS and not (answer and answer[-1] in stop_ids):
        logits = hf(torch.tensor([prompt + answer])).logits[0, -1]
        for token in set(answer):
            logits[token] -= answer.count(token) * frequency_penalty + presence_penalty
        answer.append(int(logits.argmax()))
    return answer


@pytest.mark.parametrize("judge, some, penalty", [
    (greedy, slice(10, 26), dict(repetition_penalty=1.3)),  # counts the prompt, too
    (openais, slice(12, 20), dict(presence_penalty=20.0)),
    (openais, slice(12, 20), dict(frequency_penalty=4.0)),
])  # fmt: skip
def test_a_penalty_gives_the_judges_tokens(served, hf, prompts, tokenizer, judge, some, penalty):
    some, sampling = prompts[some], TTSamplingParams(**penalty)
    expected = [judge(hf, prompt, tokenizer.stop_ids, **penalty) for prompt in some]
    assert engine(served).serve(make_requests(some, tokenizer, [sampling] * len(some))) == expected
    assert expected != [greedy(hf, prompt, tokenizer.stop_ids) for prompt in some], "the penalty changes nothing here"


@torch.no_grad()
def test_log_probabilities_of_sampled_tokens(served, hf, prompts, tokenizer):
    """Some requests ask for log-probabilities, others do not; every request gets the pair.

    Log-probabilities are of the logits before temperature and penalties.
    """
    samplings = [
        TTSamplingParams(enable_log_probs=True),
        TTSamplingParams(),
        TTSamplingParams(1.0, top_k=20, seed=1, repetition_penalty=1.2, enable_log_probs=True),
    ]
    found = make_requests(prompts[10:13], tokenizer, samplings)
    engine(served, ahead=2).serve(found)
    for request in (found[0], found[2]):
        logits = hf(torch.tensor([request.tokens])).logits[0, len(request.prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(request.answer)[:, None])[:, 0]
        assert (torch.tensor(request.log_probs) - expected).abs().max() < 0.15

"""What requests may ask of the next token, mixed in one batch: everybody gets what being alone gives, and nothing raises."""

import pytest
import torch
from vllm_engine import MAX_LEN, NEW_TOKENS, ROWS, Engine, TTSamplingParams, engine, greedy, requests

from models.demos.qwen25_7b.config.sampling import Sampling, Seen
from models.demos.qwen25_7b.serving.sampling import choose

EVERYTHING = 1056  # the small checkpoint's vocabulary: top_k off, as the plugin says it


def asked(prompts, text, samplings) -> list:
    found = requests(prompts, text)
    for request, sampling in zip(found, samplings, strict=True):
        request.sampling = sampling
    return found


def ours(request, logits) -> int:
    """What the class should choose from these logits."""
    s = request.sampling
    top_k, top_p = (1, 1.0) if s.top_k == 1 else (0 if s.top_k == EVERYTHING else s.top_k, s.top_p)
    sampling = Sampling(
        s.temperature, top_k, top_p, s.seed, s.repetition_penalty, s.presence_penalty, s.frequency_penalty
    )
    return choose(logits, sampling, s.seed or 0, len(request.tokens), Seen(request.prompt, request.answer))


SAMPLINGS = (
    TTSamplingParams(),
    TTSamplingParams(1.0, top_k=20, top_p=0.8, seed=1),
    TTSamplingParams(1.0, top_k=EVERYTHING, seed=2),
    TTSamplingParams(1.5, top_k=100, top_p=0.95, seed=3),
    TTSamplingParams(1.0, top_k=1, seed=4),
    TTSamplingParams(0.7, top_k=20, top_p=0.8, repetition_penalty=1.05, seed=5),  # Qwen2.5-7B-Instruct's own
    TTSamplingParams(0.0, top_k=EVERYTHING, presence_penalty=1.5),
    TTSamplingParams(1.0, top_k=EVERYTHING, frequency_penalty=0.5, presence_penalty=-0.5, seed=2**31 - 1),
)


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("chosen", [range(8), (0, 1, 4), (0, 1, 2, 3)], ids=["all", "on the chips", "no penalties"])
def test_every_option_beside_every_other(served, prompts, text, ahead, chosen):
    """As the host's sampler chooses from the same logits."""
    samplings = [SAMPLINGS[i] for i in chosen]
    some = prompts[20 : 20 + len(samplings)]
    busy = engine(served, ahead=ahead)
    answers = busy.serve(asked(some, text, samplings))
    assert answers == engine(served, device=False, chooser=ours).serve(asked(some, text, samplings))
    assert busy.overlapped or ahead == 1


def test_a_seeded_text_is_the_same_in_any_company(served, prompts, text):
    """In another row, beside others, and when its blocks were taken in its middle."""
    model, caches, _ = served
    tight = [sum(prompts[i : i + 4], []) for i in range(10, 20)]
    samplings = [
        TTSamplingParams(presence_penalty=20.0)
        if i % 2
        else TTSamplingParams(1.0, (20, EVERYTHING)[i % 4 // 2], seed=i)
        for i in range(10)
    ]
    roomy = engine(served).serve(asked(tight, text, samplings))
    assert roomy[3:5] == engine(served).serve(asked(tight[3:5], text, samplings[3:5]))
    crowded = Engine(model, caches, 9, 64, rows=ROWS, max_len=MAX_LEN, ahead=2)
    assert crowded.serve(asked(tight, text, samplings)) == roomy and crowded.preempted


def test_without_a_seed_texts_differ(served, prompts, text):
    hot = TTSamplingParams(10.0, top_k=32)
    answers = engine(served).serve(asked([prompts[0]] * 4, text, [hot] * 4))
    assert len(set(map(tuple, answers))) == 4


def test_repetition_penalty_is_hugging_faces(served, hf, prompts, text):
    some = prompts[10:26]
    expected = [greedy(hf, prompt, text.stop_ids, repetition_penalty=1.3) for prompt in some]
    sampling = TTSamplingParams(repetition_penalty=1.3)
    assert engine(served).serve(asked(some, text, [sampling] * len(some))) == expected
    assert expected != [greedy(hf, prompt, text.stop_ids) for prompt in some], "the penalty changes nothing here"


def test_penalties_cost_no_logits(served, prompts, text, monkeypatch):
    """The chips choose: no logits are read, and repetition's next step is under way while this one's tokens are."""
    model, _, _ = served
    monkeypatch.setattr(model.replica, "logits", lambda: pytest.fail("logits were read"))
    samplings = [SAMPLINGS[5], TTSamplingParams(), TTSamplingParams(repetition_penalty=1.3)]
    busy = engine(served, ahead=2)
    busy.serve(asked(prompts[:3], text, samplings))
    assert busy.overlapped
    engine(served).serve(asked(prompts[:2], text, [TTSamplingParams(presence_penalty=1.0)] * 2))


@torch.no_grad()
def penalised_greedy(hf, prompt, stop_ids, presence, frequency) -> list[int]:
    """OpenAI's formula: logit - count * frequency - (count > 0) * presence, of what the answer has."""
    answer = []
    while len(answer) < NEW_TOKENS and not (answer and answer[-1] in stop_ids):
        logits = hf(torch.tensor([prompt + answer])).logits[0, -1]
        for token in set(answer):
            logits[token] -= answer.count(token) * frequency + presence
        answer.append(int(logits.argmax()))
    return answer


@pytest.mark.parametrize("presence, frequency", [(20.0, 0.0), (0.0, 4.0)])
def test_presence_and_frequency_are_of_the_answer_alone(served, hf, prompts, text, presence, frequency):
    some = prompts[12:20]
    expected = [penalised_greedy(hf, prompt, text.stop_ids, presence, frequency) for prompt in some]
    sampling = TTSamplingParams(presence_penalty=presence, frequency_penalty=frequency)
    assert engine(served).serve(asked(some, text, [sampling] * len(some))) == expected
    assert expected != [greedy(hf, prompt, text.stop_ids) for prompt in some], "the penalties change nothing here"


@torch.no_grad()
def test_log_probabilities_of_the_chosen(served, hf, prompts, text):
    """Of some requests beside others without: a pair comes for all, and is of the logits before temperature and penalties."""
    samplings = [
        TTSamplingParams(enable_log_probs=True),
        TTSamplingParams(),
        TTSamplingParams(1.0, top_k=20, seed=1, repetition_penalty=1.2, enable_log_probs=True),
    ]
    found = asked(prompts[10:13], text, samplings)
    engine(served, ahead=2).serve(found)
    for request in (found[0], found[2]):
        logits = hf(torch.tensor([request.tokens])).logits[0, len(request.prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(request.answer)[:, None])[:, 0]
        assert (torch.tensor(request.log_probs) - expected).abs().max() < 0.15


def test_whatever_vllm_lets_through(served, prompts, text):
    """Values at the ends of what a request may have; an exception here would end the engine."""
    odd = [
        TTSamplingParams(0.01, top_k=EVERYTHING, top_p=1e-6, seed=-7),
        TTSamplingParams(2.0, top_k=33, top_p=1.0, seed=0),
        TTSamplingParams(1.0, top_k=2, top_p=0.0),
        TTSamplingParams(1e-9, top_k=0),
        TTSamplingParams(0.0, top_k=1, repetition_penalty=1e-3, presence_penalty=2.0, frequency_penalty=-2.0),
        TTSamplingParams(1.0, repetition_penalty=1e6, seed=1 << 40, enable_log_probs=True),
    ]
    found = asked(prompts[: len(odd)], text, odd)
    engine(served, ahead=2).serve(found)
    assert all(request.answer for request in found)

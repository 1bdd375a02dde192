"""lm-eval's three request types give Hugging Face's results."""

import pytest
import torch
from lm_eval.api.instance import Instance
from qwen25_7b_lab.evaluation.harness import ReplicaLM

from models.demos.qwen25_7b.errors import UserError

CHATS = [  # a question, the beginning of an answer, a possible continuation
    ("What is the capital of France?", "The capital of France is", " Paris."),
    ("What is the capital of France?", "The capital of France is", " Rome."),
    ("What is 7 + 5?", "7 +", " 5 = 12."),
    ("What is 7 + 5?", "7", " and 12"),
    ("Spell the word banana.", "b,", " a, n, a, n, a. That spells banana."),
]


@pytest.fixture(scope="module")
def model(replica, tokenizer):
    return ReplicaLM([replica], tokenizer)


@pytest.fixture(scope="module")
def chats(model) -> list[tuple[str, str]]:
    return [(prompt_of(model, question) + begin, rest) for question, begin, rest in CHATS]


def prompt_of(model, question) -> str:
    return model.apply_chat_template([{"role": "user", "content": question}])


def requests(kind, arguments) -> list[Instance]:
    return [Instance(kind, {}, args, i) for i, args in enumerate(arguments)]


def log_chances(hugging_face, ids) -> torch.Tensor:
    """Return the log-probability of each token but the first, given the tokens before it."""
    with torch.no_grad():
        logits = hugging_face.model(torch.tensor([ids])).logits[0, :-1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]


def test_loglikelihoods_are_hugging_faces(model, chats, hugging_face):
    got = model.loglikelihood(requests("loglikelihood", chats))
    for (context, answer), (total, _) in zip(chats, got):
        ids, before = model.tok_encode(context + answer), len(model.tok_encode(context))
        assert total == pytest.approx(float(log_chances(hugging_face, ids)[before - 1 :].sum()), abs=0.15, rel=0.02)
    assert [greedy for _, greedy in got] == [True, False, True, False, True]


def test_a_context_that_is_too_long_is_cut_at_its_start(model, chats, hugging_face):
    context, answer = chats[0]
    ((total, greedy),) = model.loglikelihood(requests("loglikelihood", [(context * 9, answer)]))
    count = len(model.tok_encode(answer))
    ids = model.tok_encode(context * 9 + answer)[-(model.max_length + 1) :]
    assert total == pytest.approx(float(log_chances(hugging_face, ids)[-count:].sum()), abs=0.15) and greedy


def test_rolling_scores_a_text_longer_than_the_context(model, hugging_face):
    long = "One morning teacher Tom met a red fox in the forest. " * 14
    short = "The fox slept by the fire."
    got = model.loglikelihood_rolling(requests("loglikelihood_rolling", [(long,), (short,)]))
    for context, total in zip((long, short), got):
        ids, size = [model.prefix_token_id, *model.tok_encode(context)], model.max_length
        expected = float(log_chances(hugging_face, ids[: size + 1]).sum())
        while len(ids) > size + 1:  # lm-eval's windows: each window begins where the last one ended
            ids = ids[size:]
            expected += float(log_chances(hugging_face, ids[: size + 1]).sum())
        assert total == pytest.approx(expected, rel=0.03)
    assert len(model.tok_encode(long)) > model.max_length


def generate(model, arguments) -> list[str]:
    return model.generate_until(requests("generate_until", arguments))


def test_text_ends_at_a_stop_token_at_until_or_at_its_length(model):
    capital, spell = prompt_of(model, CHATS[0][0]), prompt_of(model, CHATS[4][0])
    options = {"do_sample": False, "temperature": 0.0, "max_gen_toks": 24}
    cases = [
        (capital, {"until": ["\n\n"], **options}),
        (spell, {"until": ["n, a. That", " spells"], **options}),
        (spell, {"until": "a", **options}),
        (spell, {"until": [], **options, "max_gen_toks": 4}),
        (capital, {"until": ["\n\n"], **options}),
    ]
    answers = generate(model, cases)
    assert answers[:3] == ["The capital of France is Paris.", "b, a, n, a, ", "b, "]
    assert answers[3] and "b, a, n, a, n, a. That spells banana.".startswith(answers[3]) and answers[4] == answers[0]


def test_a_sampled_text_depends_on_its_request_only(model, chats):
    settings = {"until": [], "do_sample": True, "temperature": 3.0, "max_gen_toks": 10}
    cases = [(context, settings) for context, _ in chats]
    answers = generate(model, cases)
    assert generate(model, cases[:2]) == answers[:2], "the batch of a request changed its sampled text"
    assert answers[0] != answers[1], "two requests sampled the same text"


def test_unsupported_requests_are_refused(model, chats):
    context = chats[0][0]
    with pytest.raises(UserError, match="num_beams"):
        generate(model, [(context, {"until": [], "num_beams": 4})])
    with pytest.raises(UserError, match="96 tokens of a context of 96"):
        generate(model, [(context, {"until": [], "max_gen_toks": 96})])
    with pytest.raises(UserError, match="--max-seq-len allows 1 to 96"):
        model.loglikelihood(requests("loglikelihood", [(context, "a " * 200)]))

"""lm-eval's three questions to a model, answered as Hugging Face answers them."""

import pytest
import torch
from lm_eval.api.instance import Instance

from models.common.errors import UserError

CHATS = [  # a question, the beginning of an answer, and a way in which it may go on
    ("What is the capital of France?", "The capital of France is", " Paris."),
    ("What is the capital of France?", "The capital of France is", " Rome."),
    ("What is 7 + 5?", "7 +", " 5 = 12."),
    ("What is 7 + 5?", "7", " and 12"),
    ("Spell the word banana.", "b,", " a, n, a, n, a. That spells banana."),
]


@pytest.fixture(scope="module")
def model(replica, text):
    from models.demos.qwen25_7b.evaluation.harness import ReplicaLM

    return ReplicaLM([replica], text)


@pytest.fixture(scope="module")
def chats(model) -> list[tuple[str, str]]:
    return [(asked(model, question) + begin, rest) for question, begin, rest in CHATS]


def asked(model, question) -> str:
    return model.apply_chat_template([{"role": "user", "content": question}])


def requests(kind, arguments) -> list[Instance]:
    return [Instance(kind, {}, args, i) for i, args in enumerate(arguments)]


def log_chances(hugging_face, ids) -> torch.Tensor:
    """Of each token but the first, after those before it."""
    with torch.no_grad():
        logits = hugging_face.model(torch.tensor([ids])).logits[0, :-1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]


def test_loglikelihoods_are_hugging_faces(model, chats, hugging_face):
    got = model.loglikelihood(requests("loglikelihood", chats))
    for (context, answer), (total, _) in zip(chats, got):
        ids, before = model.tok_encode(context + answer), len(model.tok_encode(context))
        assert total == pytest.approx(float(log_chances(hugging_face, ids)[before - 1 :].sum()), abs=0.15, rel=0.02)
    assert [greedy for _, greedy in got] == [True, False, True, False, True]


def test_a_text_that_has_nothing_before_it(model, hugging_face):
    ((total, _),) = model.loglikelihood(requests("loglikelihood", [("", "Hello!")]))
    ids = [model.prefix_token_id, *model.tok_encode("Hello!")]
    assert total == pytest.approx(float(log_chances(hugging_face, ids).sum()), rel=0.02)


def test_a_context_that_is_too_long_loses_its_beginning(model, chats, hugging_face):
    context, answer = chats[0]
    ((total, greedy),) = model.loglikelihood(requests("loglikelihood", [(context * 9, answer)]))
    count = len(model.tok_encode(answer))
    ids = model.tok_encode(context * 9 + answer)[-(model.max_length + 1) :]
    assert total == pytest.approx(float(log_chances(hugging_face, ids)[-count:].sum()), abs=0.15) and greedy


def test_rolling_goes_over_a_text_longer_than_the_context(model, hugging_face):
    long = "One morning teacher Tom met a red fox in the forest. " * 14
    short = "The fox slept by the fire."
    got = model.loglikelihood_rolling(requests("loglikelihood_rolling", [(long,), (short,)]))
    for said, total in zip((long, short), got):
        ids, size = [model.prefix_token_id, *model.tok_encode(said)], model.max_length
        expected = float(log_chances(hugging_face, ids[: size + 1]).sum())
        while len(ids) > size + 1:  # windows as lm-eval has them: the next ones begin where the last one ended
            ids = ids[size:]
            expected += float(log_chances(hugging_face, ids[: size + 1]).sum())
        assert total == pytest.approx(expected, rel=0.03)
    assert len(model.tok_encode(long)) > model.max_length


def ask(model, arguments) -> list[str]:
    return model.generate_until(requests("generate_until", arguments))


def test_text_ends_at_a_stop_token_at_until_or_at_its_length(model):
    capital, spell = asked(model, CHATS[0][0]), asked(model, CHATS[4][0])
    options = {"do_sample": False, "temperature": 0.0, "max_gen_toks": 24}
    wanted = [
        (capital, {"until": ["\n\n"], **options}),
        (spell, {"until": ["n, a. That", " spells"], **options}),
        (spell, {"until": "a", **options}),
        (spell, {"until": [], **options, "max_gen_toks": 4}),
        (capital, {"until": ["\n\n"], **options}),
    ]
    said = ask(model, wanted)
    assert said[:3] == ["The capital of France is Paris.", "b, a, n, a, ", "b, "]
    assert said[3] and "b, a, n, a, n, a. That spells banana.".startswith(said[3]) and said[4] == said[0]


def test_text_ends_where_the_first_of_several_ends_begins():
    from models.demos.qwen25_7b.evaluation.harness import before_any

    assert before_any(["\n\n", "Question:", "!"], "12 apples.\n\nQuestion: why?") == "12 apples."
    assert before_any(["Question:"], "12 apples.") == "12 apples." == before_any([], "12 apples.")


def test_drawn_text_depends_on_the_request_alone(model, chats):
    drawn = {"until": [], "do_sample": True, "temperature": 3.0, "max_gen_toks": 10}
    wanted = [(context, drawn) for context, _ in chats]
    said = ask(model, wanted)
    assert ask(model, wanted[:2]) == said[:2], "who shared the batch, or the time, changed what was drawn"
    assert said[0] != said[1], "two requests drew alike"


def test_what_is_not_done_is_said(model, chats):
    context = chats[0][0]
    with pytest.raises(UserError, match="num_beams"):
        ask(model, [(context, {"until": [], "num_beams": 4})])
    with pytest.raises(UserError, match="96 new tokens of 96"):
        ask(model, [(context, {"until": [], "max_gen_toks": 96})])
    with pytest.raises(UserError, match="continuation must be 1 to 96"):
        model.loglikelihood(requests("loglikelihood", [(context, "a " * 200)]))

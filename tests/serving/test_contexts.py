"""Any context works: a request gets the text of a roomy context, or one line refuses it before anything is loaded."""

import random

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from models.common.errors import UserError
from models.demos.qwen25_7b.reference.corpus import draw_chat, make_questions
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.generator import Generator
from models.demos.qwen25_7b.serving.request import check_request
from models.demos.qwen25_7b.serving.text import Text

USERS, ROOMY, NEW_TOKENS = 3, 2048, 6


@st.composite
def requests(draw):
    """(context, tokens of each user's prompt): some that fit, most near the context's end, some beyond it."""
    context = draw(st.one_of(st.integers(1, 140), st.integers(1, 1200)))
    lengths = st.one_of(st.integers(1, context + 1), st.integers(max(1, context - 40), context + 1))
    return context, draw(st.lists(lengths, min_size=1, max_size=USERS))


def filling(*contexts: int, company: list[int]):
    """An example for each context: one user whose prompt leaves room for two tokens, alone or with users of these prompts."""

    def decorate(test):
        for context in contexts:
            test = example(request=(context, [context - 2, *company]))(test)
        return test

    return decorate


@pytest.fixture(scope="module")
def roomy(replica_of):
    generator = Generator([replica_of(USERS, ROOMY)])
    yield generator
    generator.close()


@pytest.fixture(scope="module")
def token_ids():
    """A long chat of what the checkpoint was taught: a text of random tokens would hang on last bits everywhere."""
    text, questions, ids = Text(SMALL_CHECKPOINT, instruct=True), make_questions(), []
    rng = random.Random(0)
    while len(ids) < ROOMY:
        ids += text.tokenizer.apply_chat_template(draw_chat(questions, rng), return_dict=False)
    return ids


@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(request=requests())
@filling(17, 30, 66, 127, 129, 300, 520, 1023, 1100, company=[])
@filling(17, 129, 1023, company=[5])
@example(request=(1, [1]))
@example(request=(2, [1]))
def test_a_text_is_that_of_a_roomy_context_or_refused_at_once(request, roomy, replica_of, token_ids):
    context, lengths = request
    prompts = [token_ids[user : user + length] for user, length in enumerate(lengths)]
    new_tokens = min(NEW_TOKENS, max(1, context - max(lengths)))
    if max(lengths) + new_tokens > context:
        with pytest.raises(UserError, match=f"context of {context}"):
            check_request(prompts, new_tokens, context)
        return
    check_request(prompts, new_tokens, context)
    generator = Generator([replica_of(len(prompts), context)])
    got = list(generator.generate(prompts, new_tokens))
    generator.close()
    assert got == list(roomy.generate(prompts, new_tokens))

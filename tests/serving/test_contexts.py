"""Any context works: a request gets the tokens of a roomy context or is refused before loading."""

import gc

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT, training_chats
from models.demos.qwen25_7b.serving.generator import Generator
from models.demos.qwen25_7b.serving.request import check_request
from models.demos.qwen25_7b.serving.tokenizer import ChatTokenizer
from tests.generation import generate

USERS, ROOMY, NEW_TOKENS = 3, 2048, 6


@st.composite
def requests(draw):
    """(context, length of each user's prompt), up to one token over the context."""
    context = draw(st.one_of(st.integers(1, 140), st.integers(1, 1200)))
    lengths = st.one_of(st.integers(1, context + 1), st.integers(max(1, context - 40), context + 1))
    return context, draw(st.lists(lengths, min_size=1, max_size=USERS))


def filling(*contexts: int, other_lengths: list[int]):
    """Add an example for each context: one prompt leaves room for two tokens.

    other_lengths: of the other users' prompts.
    """

    def decorate(test):
        for context in contexts:
            test = example(request=(context, [context - 2, *other_lengths]))(test)
        return test

    return decorate


@pytest.fixture(scope="module")
def roomy(replica_of):
    generator = Generator([replica_of(USERS, ROOMY)])
    yield generator
    generator.close()


@pytest.fixture(scope="module")
def token_ids():
    """A long chat from the checkpoint's training data.

    With random tokens, last bits would decide which token is sampled.
    """
    return ChatTokenizer(SMALL_CHECKPOINT, instruct=True).hf.encode(training_chats())


@settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(request=requests())
@filling(30, 127, 300, 1100, other_lengths=[])
@filling(17, 129, 1023, other_lengths=[5])
@example(request=(1, [1]))
@example(request=(2, [1]))
def test_an_answer_equals_that_of_a_longer_context_or_is_refused_at_once(
    request, roomy, replica_of, token_ids
):
    context, lengths = request
    prompts = [token_ids[user : user + length] for user, length in enumerate(lengths)]
    new_tokens = min(NEW_TOKENS, max(1, context - max(lengths)))
    if max(lengths) + new_tokens > context:
        with pytest.raises(UserError, match=f"context of {context}"):
            check_request(prompts, new_tokens, context)
        return
    check_request(prompts, new_tokens, context)
    generator = Generator([replica_of(len(prompts), context)])
    got = generate(generator, prompts, new_tokens)
    generator.close()
    del generator
    gc.collect()  # frees its memory, where a replay of the roomy replica's traces writes
    assert got == generate(roomy, prompts, new_tokens)

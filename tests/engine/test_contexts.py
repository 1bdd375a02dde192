"""Any context works: a request gets the tokens of a roomy context."""

import pytest

from models.demos.qwen25_7b.engine.generator import Generator
from tests.generation import generate, training_chats

USERS, ROOMY, NEW_TOKENS = 3, 2048, 6


@pytest.fixture(scope="module")
def roomy(replica_of):
    return Generator([replica_of(USERS, ROOMY)])


@pytest.fixture(scope="module")
def token_ids(tokenizer):
    """A long chat from the checkpoint's training data.

    With random tokens, last bits would decide which token is sampled.
    """
    return tokenizer.hf.encode(training_chats())


@pytest.mark.parametrize(
    "context, lengths",
    [
        (2, [1]),
        (17, [15, 5]),
        (30, [28]),
        (127, [125]),
        (129, [127, 5, 90]),
        (1023, [1021]),
        (300, [298]),
        (700, [660, 500]),
    ],
)
def test_an_answer_equals_that_of_a_longer_context(context, lengths, roomy, replica_of, token_ids):
    """Most prompts leave room for two tokens."""
    prompts = [token_ids[user : user + length] for user, length in enumerate(lengths)]
    new_tokens = min(NEW_TOKENS, context - max(lengths))
    generator = Generator([replica_of(len(prompts), context)])
    got = generate(generator, prompts, new_tokens)
    generator.close()
    del generator  # its memory is where a replay of the roomy replica's traces writes
    assert got == generate(roomy, prompts, new_tokens)

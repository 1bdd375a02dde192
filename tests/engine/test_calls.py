"""Generators and models refuse bad calls in one line, before anything is launched or loaded."""

import pytest

from models.demos.qwen25_7b.engine.generator import Generator
from models.demos.qwen25_7b.errors import UserError

PROMPTS = [[5, 6, 7], [8, 9]]


@pytest.fixture(scope="module")
def generator(replica_of):
    return Generator([replica_of(2, 64)])


@pytest.mark.parametrize("token", [-1, 1056, 1 << 40])
def test_a_token_that_the_model_does_not_have_is_refused_before_anything_is_launched(generator, token, monkeypatch):
    monkeypatch.setattr(generator.replicas[0], "prefill", lambda *_: pytest.fail("launched"))
    with pytest.raises(UserError, match=f"prompt 1 has token ids .*{token}.*0 to 1055"):
        generator.generate([[5], [3, 4, token]], 4)


def test_a_second_iterator_is_refused(generator):
    """The second iterator is refused, whether made before or after the first began.

    Closing the first iterator frees the generator.
    """
    alone = list(generator.generate(PROMPTS, 6))
    first, second = generator.generate(PROMPTS, 6), generator.generate(PROMPTS[::-1], 6)
    begun = [next(first)]
    with pytest.raises(UserError, match="middle of another call"):
        next(second)
    with pytest.raises(UserError, match="middle of another call"):
        generator.generate(PROMPTS, 6)
    assert begun + list(first) == alone
    cut = generator.generate(PROMPTS, 6)
    next(cut)
    cut.close()
    assert list(generator.generate(PROMPTS, 6)) == alone

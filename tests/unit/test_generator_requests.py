"""A request that the model cannot serve is refused before loading.

The error names the prompt and the limit.
"""

import pytest

from models.common.errors import UserError
from models.demos.qwen25_7b.serving.generator import check_request


def refusal(*request) -> str:
    with pytest.raises(UserError) as caught:
        check_request(*request)
    return str(caught.value)


def test_a_request_that_just_fits():
    check_request([[7]], 1, 2)
    check_request([[7] * 100] * 32, 28, 128)


def test_no_prompts():
    assert "prompts must hold at least one prompt" in refusal([], 1, 128)


def test_an_empty_prompt_is_named():
    assert "prompt 2" in refusal([[7], [7], [], [7]], 1, 128)


def test_prompt_and_new_tokens_beyond_the_context():
    message = refusal([[7], [7] * 101], 28, 128)
    assert "prompt 1" in message and "101" in message and "28" in message and "128" in message


@pytest.mark.parametrize("new_tokens", [0, -5])
def test_zero_new_tokens_are_refused(new_tokens):
    assert f"{new_tokens}" in refusal([[7]], new_tokens, 128)

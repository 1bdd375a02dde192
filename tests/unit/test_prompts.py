"""Prompts: reading them from the command line in any locale, and showing them."""

from argparse import Namespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.common.errors import UserError
from models.demos.qwen25_7b.demo import demo
from models.demos.qwen25_7b.demo.prompts import read_prompts
from models.demos.qwen25_7b.demo.report import Speed, show_table
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.tokenizer import ChatTokenizer


@given(st.text(min_size=1).filter(str.strip))
def test_utf_8_arguments_are_read_in_a_locale_without_utf_8(prompt):
    """In such a locale, Python decodes each byte above 0x7f as a surrogate."""
    hidden = prompt.encode().decode("ascii", "surrogateescape")
    for argument in (hidden, prompt):
        args = Namespace(prompt=argument, prompt_file=None, prompts=None, batch_size=None)
        assert read_prompts(args) == [prompt]


def test_a_table_has_one_line_a_user_with_any_text(capsys):
    show_table(["a\x1b[2J\nb" * 9, "c\u2028d"], ["\x9b\r\n\u202e!", "e" * 500], [3, 12])
    lines = capsys.readouterr().out.splitlines()
    assert (
        len(lines) == 5
        and "a\\x1b[2J b" in lines[2]
        and "\\u202e!" in lines[2]
        and lines[3].endswith("…")
    )
    assert len({line.index(count) for line, count in zip(lines[2:4], ("  3  ", " 12  "))}) == 1, (
        "columns"
    )


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer(SMALL_CHECKPOINT, instruct=False)


@pytest.mark.parametrize("context", [1, 1000, 32768, 131072])
def test_a_prompt_that_fits_is_never_too_long_by_its_bytes(tokenizer, context):
    """The longest prompts of `context` tokens: the longest token, or letters that NFC composes."""
    longest = max(tokenizer.hf.get_vocab(), key=len).replace("\u0120", " ")
    for prompt in (longest * context, "\u1112\u1161\u11ab" * context):
        tokenizer.check_lengths([prompt], context)


def test_a_prompt_that_cannot_fit_is_named_with_its_length(tokenizer):
    with pytest.raises(
        UserError, match="prompt 1 has 50000000 bytes, too many for a context of 131072 tokens"
    ):
        tokenizer.check_lengths(["short", "long words" * 5_000_000], 131072)


@pytest.mark.parametrize(
    "longest, requested, context",
    [(40, None, 1024), (1047, None, 1047), (40, 96, 96), (9999, None, 4096)],
)
def test_the_context_grows_to_the_longest_prompt_and_its_answer(
    capsys, longest, requested, context
):
    config = Namespace(context=4096)
    assert demo._context(Namespace(max_seq_len=requested), config, longest) == context
    assert ("1047 tokens" in capsys.readouterr().out) == (longest == 1047)


def test_speed_tells_prefill_from_decode_while_users_take_turns():
    """Two users run one at a time. The second user's prefill does not count as decode time."""
    speed = Speed(users=2, at_once=1)
    speed.begin(0.0)
    for user, now in ((0, 4.0), (0, 5.0), (1, 9.0), (1, 10.0)):
        speed.add(user, now)
    assert "4000 ms" in f"{speed}" and "1.00 tokens/s, 1.00 tokens/s/user" in f"{speed}"

"""Prompts: from the command line in any locale, and how they are shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.common.errors import UserError
from models.demos.qwen25_7b.demo.prompts import read_prompts
from models.demos.qwen25_7b.demo.report import show_table
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.text import Text


@given(st.text(min_size=1).filter(str.strip))
def test_utf_8_on_the_command_line_is_read_in_a_locale_that_does_not_know_it(prompt):
    """Python hides each byte above 0x7f in a surrogate there."""
    hidden = prompt.encode().decode("ascii", "surrogateescape")
    assert read_prompts(hidden, None, None, None) == [prompt] == read_prompts(prompt, None, None, None)


def test_a_table_has_one_line_a_user_whatever_they_write(capsys):
    show_table(["a\x1b[2J\nb" * 9, "c\u2028d"], ["\x9b\r\n\u202e!", "e" * 500], [3, 12])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and "a\\x1b[2J b" in lines[2] and "\\u202e!" in lines[2] and lines[3].endswith("…")
    assert len({line.index(count) for line, count in zip(lines[2:4], ("  3  ", " 12  "))}) == 1, "columns"


@pytest.fixture(scope="module")
def text() -> Text:
    return Text(SMALL_CHECKPOINT, instruct=False)


@pytest.mark.parametrize("context", [1, 1000, 32768, 131072])
def test_a_prompt_that_fits_is_never_too_long_by_its_bytes(text, context):
    """The longest that `context` tokens hold: each token the longest, or letters that make one character first (NFC)."""
    longest = max(text.tokenizer.get_vocab(), key=len).replace("\u0120", " ")
    for prompt in (longest * context, "\u1112\u1161\u11ab" * context):
        text.check_lengths([prompt], context)


def test_a_prompt_that_cannot_fit_is_named_with_its_length(text):
    with pytest.raises(UserError, match="prompt 1 has 50000000 bytes, too many for a context of 131072 tokens"):
        text.check_lengths(["short", "long words" * 5_000_000], 131072)

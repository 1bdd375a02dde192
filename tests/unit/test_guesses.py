"""Guesses of what follows a text, who gets rows for them, and which of them are kept."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.common.errors import UserError
from models.demos.qwen25_7b.config.sampling import GREEDY, Sampling
from models.demos.qwen25_7b.serving.block_pool import BlockPool
from models.demos.qwen25_7b.serving.proposals import LENGTHS, Repeats
from models.demos.qwen25_7b.serving.request import check_speculate
from models.demos.qwen25_7b.serving.speculation import Draft, Speculation

BLOCK = 32


@dataclass(eq=False)
class Text:
    """What Speculation knows of a text."""

    row: int
    tokens: list[int]
    left: int = 100
    sampling: Sampling = GREEDY
    blocks: list[int] = field(default_factory=list)
    repeats: Repeats = field(default_factory=Repeats)


def searched(tokens: list[int], count: int) -> list[int]:
    """What Repeats.following should find, by looking everywhere."""
    for length in LENGTHS:
        for end in range(len(tokens) - 1, length - 1, -1):
            if length <= len(tokens) and tokens[end - length : end] == tokens[-length:]:
                whole = list(tokens)
                for i in range(count):
                    whole.append(whole[end + i])
                return whole[len(tokens) :]
    return []


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 10), st.integers(0, 7))
def test_guesses_follow_the_last_place_where_the_longest_end_of_the_text_stood(tokens, step, count):
    """Kept up while the text grows by several tokens at a time."""
    repeats = Repeats()
    for end in range(1, len(tokens) + 1, step):
        assert repeats.following(tokens[:end], count) == searched(tokens[:end], count)


def test_a_copy_goes_on_through_itself():
    assert Repeats().following([9, 1, 2, 1, 2, 1], 5) == [2, 1, 2, 1, 2]


@pytest.mark.parametrize(
    "guesses, choices, kept",
    [
        ([], [5], [5]),
        ([5, 6, 7], [5, 6, 7, 8], [5, 6, 7, 8]),
        ([5, 6, 7], [5, 9, 7, 8], [5, 9]),  # what followed the wrong 6 means nothing, though 7 would have been right
        ([5, 6, 7], [4, 6, 7, 8], [4]),
    ],
)
def test_choices_are_kept_up_to_the_first_that_was_not_guessed(guesses, choices, kept):
    rows = (3, 10, 1, 7)[: len(choices)]
    chosen = [-1] * 32
    for row, choice in zip(rows, choices):
        chosen[row] = choice
    assert Draft(None, rows, (0, *guesses)).accepted(chosen) == kept


def drafts(texts, *, rows, most, blocks=100):
    pool = BlockPool(blocks, BLOCK)
    for text in texts:
        text.blocks = pool.take(-(-len(text.tokens) // BLOCK))
    return Speculation(SimpleNamespace(batch=rows, width=8), pool, most).drafts(texts), pool


def test_rows_without_a_text_are_dealt_out_evenly_to_those_with_guesses():
    repeating, new = [1, 2, 3, 1, 2, 3], [7, 8, 9]
    made, _ = drafts([Text(0, repeating), Text(3, new), Text(4, repeating)], rows=10, most=8)
    assert [draft.rows for draft in made] == [(0, 1, 2, 5), (3,), (4, 6, 7, 8)]
    assert [draft.tokens for draft in made] == [(3, 1, 2, 3), (9,), (3, 1, 2, 3)]


@pytest.mark.parametrize(
    "sampling", [Sampling(1.0, top_k=0), Sampling(repetition_penalty=1.3)], ids=["chosen by the host", "with a penalty"]
)
def test_nothing_is_guessed_where_a_choice_takes_more_than_its_row(sampling):
    assert drafts([Text(0, [1, 2] * 4, sampling=sampling)], rows=8, most=4)[0] == []


def test_no_row_is_free():
    assert drafts([Text(row, [1, 2] * 4) for row in range(3)], rows=5, most=4)[0] == []


@pytest.mark.parametrize("left", [1, 2, 3, 4, 5])
def test_no_guess_goes_past_the_end_of_the_answer(left):
    made, _ = drafts([Text(0, [1, 2] * 4, left=left)], rows=8, most=4)
    assert sum(len(draft.tokens) for draft in made) == (min(left, 4) if left > 1 else 0)


@pytest.mark.parametrize("blocks, tokens, held", [(1, 3, 1), (2, 8, 2)])
def test_guesses_end_where_blocks_do(blocks, tokens, held):
    """30 tokens, the last at position 29: two more fit into its block of 32, others need another."""
    text = Text(0, [1, 2] * 15)
    made, pool = drafts([text], rows=8, most=8, blocks=blocks)
    assert [len(draft.tokens) for draft in made] == [tokens]
    assert len(text.blocks) == held and pool.free == blocks - held


def test_a_full_block_and_none_to_be_had_leave_a_plain_step():
    text = Text(0, [1, 2] * 16)
    assert drafts([text], rows=8, most=8, blocks=1)[0] == []


@pytest.mark.parametrize("speculate", [0, 9, 2.5, True])
def test_a_number_of_tokens_that_a_step_cannot_have_is_refused(speculate):
    with pytest.raises(UserError, match="1 .*8.*got"):
        check_speculate(speculate, on_host=False)


def test_the_host_verifies_nothing():
    check_speculate(1, on_host=True)
    with pytest.raises(UserError, match="host"):
        check_speculate(4, on_host=True)

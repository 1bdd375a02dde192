"""Draft tokens: proposals and slots. tests/splits/test_speculation.py judges which are accepted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.demos.qwen25_7b.config.sampling import GREEDY, SamplingParams
from models.demos.qwen25_7b.engine.scheduler import Sequence
from models.demos.qwen25_7b.engine.speculation import NGRAM_LENGTHS, Draft, NgramProposer, Speculation


def sequence(slot: int, tokens: list[int], params: SamplingParams = GREEDY) -> Sequence:
    return Sequence(0, tokens, 100, params, (), slot)


def searched(tokens: list[int], count: int) -> list[int]:
    """Return the expected result of NgramProposer.propose, by searching all positions."""
    for length in NGRAM_LENGTHS:
        for end in range(len(tokens) - 1, length - 1, -1):
            if length <= len(tokens) and tokens[end - length : end] == tokens[-length:]:
                whole = list(tokens)
                for i in range(count):
                    whole.append(whole[end + i])
                return whole[len(tokens) :]
    return []


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 10), st.integers(0, 7))
def test_drafts_follow_the_last_occurrence_of_the_longest_ngram(tokens, step, count):
    """The sequence may grow by several tokens at a time."""
    proposer = NgramProposer()
    for end in range(1, len(tokens) + 1, step):
        assert proposer.propose(tokens[:end], count) == searched(tokens[:end], count)


def drafts(sequences, **options) -> list[Draft]:
    return Speculation(**options).propose(sequences)


def test_free_slots_are_shared_evenly_among_sequences_with_draft_tokens():
    repeating, new = [1, 2, 3, 1, 2, 3], [7, 8, 9]
    made = drafts([sequence(0, repeating), sequence(3, new), sequence(4, repeating)], slots=10, max_tokens=8)
    assert [draft.slots for draft in made] == [(0, 1, 2, 5), (3,), (4, 6, 7, 8)]
    assert [draft.tokens for draft in made] == [(3, 1, 2, 3), (9,), (3, 1, 2, 3)]


def test_each_sequence_has_the_first_slots_of_a_group():
    repeating, new = [1, 2, 3, 1, 2, 3], [7, 8, 9]
    sequences = [sequence(0, new), sequence(3, repeating)]
    made = drafts(sequences, slots=8, max_tokens=4, groups=2, k_chunk=128)
    assert [draft.slots for draft in made] == [(0,), (4, 5, 6, 7)]
    assert [draft.tokens for draft in made] == [(9,), (3, 1, 2, 3)]
    more = [*sequences, sequence(4, repeating)]
    made = drafts(more, slots=8, max_tokens=4, groups=2, k_chunk=128)
    assert [draft.slots for draft in made] == [(0,), (3, 1, 2), (4, 5, 6)], "slots are lent instead"


@pytest.mark.parametrize("length, tokens", [(124, 4), (126, 3), (127, 2), (128, 0), (130, 4)])
def test_a_group_of_slots_stays_within_a_chunk_of_keys(length, tokens):
    """Cores divide the chunks of the group's last token. A token alone would be summed in another order."""
    tokens_so_far = [1, 2] * (length // 2) + [1] * (length % 2)
    made = drafts([sequence(0, tokens_so_far)], slots=8, max_tokens=4, groups=2, k_chunk=128)
    assert [len(draft.tokens) for draft in made] == ([tokens] if tokens else [])


@pytest.mark.parametrize(
    "params",
    [SamplingParams(1.0, top_k=40), SamplingParams(repetition_penalty=1.3)],
    ids=["sampled on the host", "with a penalty"],
)
def test_no_draft_where_the_host_samples_or_a_penalty_applies(params):
    assert drafts([sequence(0, [1, 2] * 4, params)], slots=8, max_tokens=4) == []

"""Prompts are cut and packed so that every token is computed once where it is written, by passes that the ops can run."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.demos.qwen25_7b.plans.blocks import BLOCKS, NO_BLOCK, continued_width
from models.demos.qwen25_7b.plans.grids import TILE
from models.demos.qwen25_7b.plans.prefill_plan import attention_chunk
from models.demos.qwen25_7b.serving.passes import PassValues, Prompt, begin, plan_passes

LONGEST = (256, 512, 1024)


@st.composite
def batches(draw):
    block, longest = draw(st.sampled_from(BLOCKS)), draw(st.sampled_from(LONGEST))
    prompts, first = [], 0
    for row in draw(st.permutations(range(8)))[: draw(st.integers(1, 8))]:
        size = draw(st.one_of(st.integers(1, 200), st.integers(1, 3000)))
        start = draw(st.one_of(st.just(0), st.integers(0, size - 1)))
        own = range(first, first := first + -(-size // block))
        prompts.append(Prompt(row, list(range(1 + 5000 * row, 1 + 5000 * row + size)), start, own))
    return prompts, longest, block


@settings(max_examples=150, deadline=None, derandomize=True)
@given(batch=batches())
def test_every_token_is_computed_and_written_where_it_belongs(batch):
    prompts, longest, block = batch
    width = max(len(p.blocks) for p in prompts)
    written, answered = {}, []
    for work in plan_passes(prompts, longest, block):
        assert work.rows <= longest and work.rows & (work.rows - 1) == 0
        values = PassValues.of(work, block, width)
        tokens, positions = values.tokens.flatten().tolist(), values.positions.flatten().tolist()
        table = values.fill_table.flatten().tolist()
        assert len(tokens) == len(positions) == work.rows and len(table) == -(-work.rows // block)
        for row, (token, position) in enumerate(zip(tokens, positions)):
            if table[row // block] != NO_BLOCK:
                written[table[row // block], row % block] = token, position
        for row in work.answered:
            (prompt,) = (p for p in prompts if p.row == row)
            last = int(values.rows[0, row])
            assert (tokens[last], positions[last]) == (prompt.tokens[-1], len(prompt.tokens) - 1)
        answered += work.answered
        if work.continued:
            (start, page_table), (piece,) = values.where, work.pieces
            step = max(block, attention_chunk(work.rows))
            assert int(start) == piece.first and piece.first % step == 0, "attention begins at its chunks"
            assert page_table.shape == (1, continued_width(width, work.rows, block)) and page_table.min() >= 0
            assert page_table.shape[1] * block >= piece.first + work.rows, "attention reads past the table"
        else:
            (windows,) = values.where
            bounds = windows.tolist()
            assert bounds[0] == 0 and bounds[-1] == work.rows and bounds == sorted(bounds)
            assert len(bounds) == work.rows // TILE + 1
            for piece in work.pieces:
                assert piece.first == 0 and tokens.index(piece.tokens[0]) in bounds, "a prompt is a window"
    assert sorted(answered) == sorted(p.row for p in prompts), "who is answered, and how often"
    for prompt in prompts:
        for position in range(prompt.start // block * block, len(prompt.tokens)):
            place = prompt.blocks[position // block], position % block
            assert written.pop(place) == (prompt.tokens[position], position)
    own = {(p.blocks[-1], i) for p in prompts for i in range(len(p.tokens) % block or block, block)}
    assert set(written) <= own, "only what lies past a prompt in its last block may be written besides"


def test_32_short_prompts_take_two_passes_of_512_rows():
    prompts = [Prompt(row, [1] * 20, 0, [row]) for row in range(32)]
    passes = plan_passes(prompts, 512, 32)
    assert [(work.rows, len(work.pieces)) for work in passes] == [(512, 16)] * 2


@pytest.mark.parametrize("rows, block, expected", [(32, 32, 992), (64, 32, 992), (512, 32, 896), (32, 128, 896)])
def test_where_a_pass_begins(rows, block, expected):
    assert begin(1000, rows, block) == expected


def test_a_prompt_that_fits_goes_in_the_least_rows():
    assert [work.rows for work in plan_passes([Prompt(0, [1] * 33, 0, [0, 1])], 512, 32)] == [64]
    (work,) = plan_passes([Prompt(0, [1] * 1030, 1024, range(33))], 512, 32)
    assert work.rows == 32 and work.continued

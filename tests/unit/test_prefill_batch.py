"""Prompts are packed into prefill batches that the ops can run.

Each token is computed once where it is written.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.demos.qwen25_7b.plans.blocks import BLOCKS, NO_BLOCK, chunked_table_width
from models.demos.qwen25_7b.plans.grids import TILE
from models.demos.qwen25_7b.plans.prefill_plan import q_chunk_size
from models.demos.qwen25_7b.serving.prefill_batch import (
    prefill_inputs,
    Prompt,
    chunk_start,
    plan_prefill,
)

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
def test_every_token_is_computed_once_and_written_to_its_block(batch):
    prompts, longest, block = batch
    width = max(len(p.blocks) for p in prompts)
    written, sampled = {}, []
    for batch in plan_prefill(prompts, longest, block):
        assert batch.rows <= longest and batch.rows & (batch.rows - 1) == 0
        values = prefill_inputs(batch, block, width)
        tokens, positions = values.tokens.flatten().tolist(), values.positions.flatten().tolist()
        table = values.fill_table.flatten().tolist()
        assert len(tokens) == len(positions) == batch.rows and len(table) == -(-batch.rows // block)
        for row, (token, position) in enumerate(zip(tokens, positions)):
            if table[row // block] != NO_BLOCK:
                written[table[row // block], row % block] = token, position
        for row in batch.sampled_slots:
            (prompt,) = (p for p in prompts if p.slot == row)
            last = int(values.logits_indices[0, row])
            assert (tokens[last], positions[last]) == (prompt.tokens[-1], len(prompt.tokens) - 1)
        sampled += batch.sampled_slots
        if batch.chunked:
            (chunk,) = batch.chunks
            start, page_table = values.start, values.page_table
            step = max(block, q_chunk_size(batch.rows))
            assert int(start) == chunk.start and chunk.start % step == 0, (
                "attention begins at its chunks"
            )
            assert (
                page_table.shape == (1, chunked_table_width(width, batch.rows, block))
                and page_table.min() >= 0
            )
            assert page_table.shape[1] * block >= chunk.start + batch.rows, (
                "attention reads past the table"
            )
        else:
            windows = values.window_starts
            bounds = windows.tolist()
            assert bounds[0] == 0 and bounds[-1] == batch.rows and bounds == sorted(bounds)
            assert len(bounds) == batch.rows // TILE + 1
            for chunk in batch.chunks:
                assert chunk.start == 0 and tokens.index(chunk.tokens[0]) in bounds, (
                    "a prompt is a window"
                )
    assert sorted(sampled) == sorted(p.slot for p in prompts), "each prompt samples one token"
    for prompt in prompts:
        for position in range(prompt.num_cached // block * block, len(prompt.tokens)):
            place = prompt.blocks[position // block], position % block
            assert written.pop(place) == (prompt.tokens[position], position)
    own = {(p.blocks[-1], i) for p in prompts for i in range(len(p.tokens) % block or block, block)}
    assert set(written) <= own, (
        "only what lies past a prompt in its last block may be written besides"
    )


def test_32_short_prompts_take_two_prefill_batches_of_512_rows():
    prompts = [Prompt(row, [1] * 20, 0, [row]) for row in range(32)]
    planned = plan_prefill(prompts, 512, 32)
    assert [(batch.rows, len(batch.chunks)) for batch in planned] == [(512, 16)] * 2


@pytest.mark.parametrize(
    "rows, block, expected", [(32, 32, 992), (64, 32, 992), (512, 32, 896), (32, 128, 896)]
)
def test_where_a_prefill_batch_starts(rows, block, expected):
    assert chunk_start(1000, rows, block) == expected


def test_a_prompt_that_fits_takes_the_fewest_rows():
    assert [batch.rows for batch in plan_prefill([Prompt(0, [1] * 33, 0, [0, 1])], 512, 32)] == [64]
    (batch,) = plan_prefill([Prompt(0, [1] * 1030, 1024, range(33))], 512, 32)
    assert batch.rows == 32 and batch.chunked

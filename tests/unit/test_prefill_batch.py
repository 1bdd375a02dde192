"""Prompts are packed into few prefill batches that the ops can run.

The property tests run the batches on a cache of tokens: a batch writes what its tables say, then reads what its page
tables name.
"""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.demos.qwen25_7b.engine.prefill_batch import WEIGHTS, Prompt, pack_prompts, prefill_inputs, prefill_kinds
from models.demos.qwen25_7b.plans.blocks import BLOCKS, NO_BLOCK, chunked_table_width, table_width
from models.demos.qwen25_7b.plans.grids import TILE, ceil_div
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS
from models.demos.qwen25_7b.plans.prefill_plan import MAX_K_CHUNKS, chunk_step

LARGEST = {1: 256, 2: 512, 8: 1024}  # rows of a batch of the 7B by tp
PREFIX = 2000  # the longest cached prefix
CONTEXT, KV_HEADS = 4096, 2
MODEL_CONFIG = SimpleNamespace(max_seq_len=CONTEXT, parallel=SimpleNamespace(kv_heads=KV_HEADS))


def prompts_of(*sizes: tuple[int, int], block: int = 32) -> list[Prompt]:
    """Prompts of (tokens, cached tokens), each with blocks of its own."""
    prompts, first = [], 0
    for slot, (size, cached) in enumerate(sizes):
        own = range(first, first := first + ceil_div(size, block))
        prompts.append(Prompt(slot, [1 + slot] * size, cached, own))
    return prompts


@st.composite
def calls(draw):
    """(prompts of one call, block, tp, tokens in the cache before it by (block, offset)).

    A prompt begins with tokens of the cache, with an earlier prompt's tokens as in vLLM, or with neither.
    """
    block, tp = draw(st.sampled_from(BLOCKS)), draw(st.sampled_from(list(LARGEST)))
    cache, prompts, next_block = {}, [], 0
    known: list[tuple[list[int], list[int]]] = []  # tokens and blocks that a prompt may begin with
    for document in range(draw(st.integers(0, 2))):
        blocks = list(range(next_block, next_block := next_block + PREFIX // block))
        tokens = [10_000 * (100 + document) + i for i in range(len(blocks) * block)]
        cache |= {(blocks[i // block], i % block): token for i, token in enumerate(tokens)}
        known.append((tokens, blocks))
    for slot in draw(st.permutations(range(12)))[: draw(st.integers(1, 12))]:
        tokens, blocks = draw(st.sampled_from(known)) if known and draw(st.booleans()) else ([], [])
        limit = draw(st.sampled_from([4, 60])) * 32 // block
        shared = draw(st.integers(0, min(limit, len(tokens) // block)))
        more = draw(st.one_of(st.integers(1, 200), st.integers(1, 1200)))
        own = [10_000 * (1 + slot) + i for i in range(more)]
        new = list(range(next_block, next_block := next_block + ceil_div(more, block)))
        cached = shared * block
        if shared == 0 and more > 1 and draw(st.booleans()):  # vLLM's start_pos may lie in a block
            cached = draw(st.integers(1, more - 1))
            cache |= {(new[i // block], i % block): own[i] for i in range(cached)}
        prompt = Prompt(slot, tokens[: shared * block] + own, cached, blocks[:shared] + new)
        prompts.append(prompt)
        known.append((prompt.tokens, prompt.blocks))
    return prompts, block, tp, cache


@settings(max_examples=50, deadline=None, derandomize=True)
@given(call=calls())
def test_every_token_is_computed_once_and_cached_blocks_are_not_written(call):
    prompts, block, tp, cache = call
    width = table_width(CONTEXT, block)
    kinds = set(prefill_kinds(LARGEST[tp], MAX_USERS))
    protected = {b for b, offset in cache if offset == block - 1}  # whole blocks of other sequences
    written, sampled = [], []
    for batch in pack_prompts(prompts, LARGEST[tp], block):
        assert batch.kind in kinds, "has no trace, and is not warmed up"
        values = prefill_inputs(batch, block, MODEL_CONFIG)
        tokens = values.tokens.flatten().tolist()
        each = batch.rows // batch.sequences
        positions = values.positions.flatten().tolist() * batch.sequences
        assert len(tokens) == len(positions) == batch.rows
        assert values.fill_table.shape == (batch.sequences, ceil_div(each, block))
        keys = values.key_rows.view(batch.sequences, KV_HEADS, each)  # as k lies
        assert (keys % CONTEXT).equal(values.positions.expand_as(keys))
        assert (keys // CONTEXT == torch.arange(KV_HEADS)[:, None]).all()
        filled = values.fill_table.tolist()
        for row, (token, position) in enumerate(zip(tokens, positions)):
            place = filled[row // each][row % each // block], row % each % block
            if place[0] != NO_BLOCK:
                assert place[0] not in protected, "another sequence may read this block"
                cache[place] = token
                written.append((place, token, position))
        for slot in batch.sampled_slots:
            (prompt,) = (p for p in prompts if p.slot == slot)
            last = int(values.logits_indices[0, slot])
            assert (tokens[last], positions[last]) == (prompt.tokens[-1], len(prompt.tokens) - 1)
        sampled += batch.sampled_slots
        (check_chunks if batch.chunked else check_windows)(batch, values, block, width, cache)
    assert sorted(sampled) == sorted(p.slot for p in prompts), "each prompt samples one token"
    computed = [(place, token, position) for place, token, position in written if token]
    assert len(computed) == len(set(computed)), "a token was written twice"
    for prompt in prompts:
        for position, token in enumerate(prompt.tokens):
            place = prompt.blocks[position // block], position % block
            assert cache[place] == token
            assert position < prompt.num_cached or (place, token, position) in computed


def check_chunks(batch, values, block, width, cache):
    """Attention begins at one multiple of its chunk size, and finds the sequence's tokens in the cache."""
    each = batch.rows // batch.sequences
    step = chunk_step(each, block)
    table_width = chunked_table_width(width, each, block)
    assert values.page_table.shape == (batch.sequences, table_width)
    assert values.sequences.tolist() == list(range(batch.sequences))
    assert values.page_table.min() >= 0
    assert table_width * block >= int(values.start) + each, "attention reads past the table"
    for chunk, table in zip(batch.chunks, values.page_table.tolist()):
        assert int(values.start) == chunk.start > 0 and chunk.start % step == 0
        for position in range(chunk.end):
            place = table[position // block], position % block
            assert cache.get(place) == chunk.prompt.tokens[position], "not in the cache yet"


def check_windows(batch, values, block, width, cache):
    bounds = values.window_starts.tolist()
    assert bounds[0] == 0 and bounds[-1] == batch.rows and bounds == sorted(bounds)
    assert len(bounds) == batch.rows // TILE + 1
    tokens = values.tokens.flatten().tolist()
    starts = [bounds[i] for i in range(len(batch.chunks))]
    for chunk, start in zip(batch.chunks, starts):
        assert chunk.start == 0
        assert tokens[start : start + chunk.end] == list(chunk.tokens), "a prompt is a window"


@settings(max_examples=120, deadline=None, derandomize=True)
@given(call=calls())
def test_no_plan_costs_more_than_one_prompt_after_the_other(call):
    prompts, block, tp, _ = call
    together = pack_prompts(prompts, LARGEST[tp], block)
    alone = [batch for prompt in prompts for batch in pack_prompts([prompt], LARGEST[tp], block)]
    assert cost(together) <= cost(alone)
    assert len(together) <= len(alone)


def cost(batches) -> int:
    """In rows: a batch reads all weights, and computes its rows."""
    return sum(WEIGHTS + batch.rows for batch in batches)


SHARED_PREFIX = [(104, 64)] * 16
FOUR_PREFIXES = [(40 + 32 * (1 + i % 4), 32 * (1 + i % 4)) for i in range(32)]
LONG_AND_SHORT = [(20, 0)] * 15 + [(1100, 0)] + [(20, 0)] * 16
LONG_AND_SHORT_CACHED = [(104, 64)] * 15 + [(1100, 64)] + [(104, 64)] * 16


@pytest.mark.parametrize(
    "sizes, tp, rows_and_sequences",
    [
        (SHARED_PREFIX, 1, [(256, 4)] * 4),
        (SHARED_PREFIX, 2, [(512, 8)] * 2),
        (SHARED_PREFIX, 8, [(1024, 16)]),
        (FOUR_PREFIXES, 2, [(512, 8)] * 4),
        (FOUR_PREFIXES, 8, [(512, 8)] * 4),
        ([(104, 64)] * 32, 8, [(1024, 16)] * 2),  # four prefixes of one length
        (LONG_AND_SHORT, 2, [(512, 0), (512, 0), (512, 1), (128, 1), (512, 0)]),
        (LONG_AND_SHORT, 8, [(1024, 0), (1024, 0), (128, 1)]),
        (LONG_AND_SHORT_CACHED, 2, [(512, 8)] * 4 + [(512, 0), (512, 1), (128, 1)]),
        ([(1100, 0)] * 4, 8, [(1024, 0)] * 4 + [(512, 4)]),  # ends after equal full chunks
        ([(104, 64), (96, 32)], 2, [(256, 0)]),  # short hits are computed again
        ([(168, 128), (200, 160)], 2, [(256, 2)]),  # one start, some tokens again
        ([(20, 0)] * 32, 2, [(512, 0)] * 2),
        ([(552, 0)] * 16, 8, [(1024, 0)] * 8 + [(1024, 16)]),  # cut at 512
        ([(552, 0)] * 3, 8, [(1024, 0)] * 2 + [(128, 2)]),  # the third one fills no batch
        ([(264, 0)] * 16, 8, [(1024, 0)] * 4 + [(512, 16)]),  # cut at 256
        ([(1000, 0)] * 2, 8, [(1024, 0)] * 2),
        ([(33, 0)], 2, [(64, 0)]),  # the fewest rows
        ([(1030, 1024)], 2, [(32, 1)]),
    ],
)
def test_batches_of(sizes, tp, rows_and_sequences):
    """sequences 0: whole prompts side by side. A prompt alone takes a batch or more."""
    batches = pack_prompts(prompts_of(*sizes), LARGEST[tp], 32)
    planned = [(batch.rows, batch.sequences if batch.chunked else 0) for batch in batches]
    assert sorted(planned) == sorted(rows_and_sequences)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    cached=st.integers(1, 4096),
    more=st.integers(1, 1500),
    block=st.sampled_from(BLOCKS),
    tp=st.sampled_from(list(LARGEST)),
    count=st.integers(1, 9),
)
def test_far_from_the_beginning_a_prompt_has_few_chunks_of_keys(cached, more, block, tp, count):
    """Each rounds attention's sums. The largest batch takes as few as a start of its allows."""
    prompts = prompts_of(*[(cached * 32 + more, cached * 32)] * count, block=block)
    for batch in pack_prompts(prompts, LARGEST[tp], block):
        if batch.chunked:
            each = batch.rows // batch.sequences
            chunks_of_keys = ceil_div(batch.chunks[0].end, chunk_step(each, block))
            assert chunks_of_keys <= MAX_K_CHUNKS or each == LARGEST[tp]


def test_batches_keep_the_order_of_their_first_prompts():
    sizes = [(500, 0), (104, 64), (480, 0), (104, 64), (300, 0)]
    batches = pack_prompts(prompts_of(*sizes), LARGEST[2], 32)
    first = [min(chunk.prompt.slot for chunk in batch.chunks) for batch in batches]
    assert first == sorted(first)

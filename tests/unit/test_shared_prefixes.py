"""Prompts share beginnings: each is computed once, and a known block holds what was written to it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.demos.qwen25_7b.config.sampling import GREEDY
from models.demos.qwen25_7b.engine import scheduler as scheduler_module
from models.demos.qwen25_7b.engine.prefill_batch import WEIGHTS, pack_prompts
from models.demos.qwen25_7b.engine.scheduler import BlockPool, Scheduler, Sequence


def prefill(prompts: list[list[int]], *, apart: bool) -> tuple[int, int]:
    """(rows that are computed, batches). apart: each prompt is computed before the next one is admitted."""
    scheduler = Scheduler(BlockPool(2048, 32), slots=32, max_sequences=32)
    batches, waiting = [], []

    def compute() -> None:
        new = pack_prompts([s.to_prefill() for s in waiting], 512, 32)
        for chunk in (chunk for batch in new for chunk in batch.chunks):
            scheduler.launched(scheduler.slots[chunk.prompt.slot], chunk.end)
        batches.extend(new)
        waiting.clear()

    for user, prompt in enumerate(prompts):
        waiting.append(Sequence(user, prompt, 8, GREEDY, ()))
        scheduler.admit(waiting[-1])
        if apart:
            compute()
    compute()
    return sum(batch.rows for batch in batches), len(batches)


@pytest.mark.parametrize("users", [1, 8, 17, 32])
@pytest.mark.parametrize("shared", [0, 31, 64, 256, 640])
@pytest.mark.parametrize("rest", [1, 40, 130])
def test_a_beginning_is_computed_once(users, shared, rest):
    prompts = [[*range(shared), *[1000 + user] * rest] for user in range(users)]
    rows, batches = prefill(prompts, apart=False)
    rows_apart, batches_apart = prefill(prompts, apart=True)
    assert rows + WEIGHTS * batches <= rows_apart + WEIGHTS * batches_apart
    if shared == 640 and users > 1:
        assert rows <= 1.3 * rows_apart and rows < users * shared, "the beginning is computed once"


def test_a_short_beginning_makes_no_further_batch():
    prompts = [[*range(64), user, user] for user in range(4)]
    assert prefill(prompts, apart=False) == (512, 1)


BLOCK = 4
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=6 * BLOCK)  # two tokens, so that prompts share beginnings


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.lists(TOKENS, min_size=1, max_size=4), st.integers(0, 9)), max_size=4), st.randoms())
def test_a_known_block_was_written(calls, random):
    """Calls are closed after any number of batches, and their sequences leave in any order."""
    scheduler = Scheduler(BlockPool(64, BLOCK), slots=4, max_sequences=4)
    written: dict[int, tuple[int, ...]] = {}  # block -> all tokens up to its end
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scheduler_module, "WEIGHTS", BLOCK)
        for prompts, launches in calls:
            sequences = [Sequence(user, prompt, 3, GREEDY, ()) for user, prompt in enumerate(prompts)]
            for sequence in sequences:
                scheduler.admit(sequence)
                assert sequence.num_cached < len(sequence.tokens), "the last token's logits are needed"
            for batch in pack_prompts([s.to_prefill() for s in sequences], 32, BLOCK)[:launches]:
                for chunk in batch.chunks:
                    sequence = scheduler.slots[chunk.prompt.slot]
                    for i in range(chunk.num_cached // BLOCK, chunk.end // BLOCK):
                        written[sequence.blocks[i]] = tuple(sequence.tokens[: (i + 1) * BLOCK])
                    scheduler.launched(sequence, chunk.end)
            random.shuffle(sequences)
            for sequence in sequences:
                scheduler.finish(sequence)
            for prompt in prompts:
                for i, block in enumerate(scheduler.pool.lookup_prefix(prompt)):
                    assert written.get(block) == tuple(prompt[: (i + 1) * BLOCK])
    assert scheduler.pool.num_free == 64 and not any(scheduler.pool.ref_counts)


def test_the_last_token_of_an_answer_is_part_of_no_prefix():
    """No step has written it to the cache."""
    scheduler = Scheduler(BlockPool(8, BLOCK), slots=1, max_sequences=1)
    sequence = Sequence(0, [1] * (2 * BLOCK - 1), 3, GREEDY, ())
    scheduler.admit(sequence)
    scheduler.launched(sequence, len(sequence.tokens))
    sequence.append([2])
    tokens = sequence.tokens
    scheduler.finish(sequence)
    assert len(tokens) == 2 * BLOCK and len(scheduler.pool.lookup_prefix(tokens)) == 1


def test_blocks_are_reused_oldest_first_and_prefixes_last():
    pool = BlockPool(4, BLOCK)
    sequence = list(range(10))
    blocks = pool.allocate(3)
    pool.register_prefix(sequence, blocks)
    pool.free(blocks)
    assert pool.lookup_prefix(sequence) == blocks[:2]
    (unused,) = pool.allocate(1)
    assert unused not in blocks
    assert pool.allocate(1) == [blocks[2]], "the end of a sequence is reused before its beginning"
    assert pool.lookup_prefix(sequence) == blocks[:2]
    assert pool.allocate(1) == [blocks[1]] and pool.lookup_prefix(sequence) == blocks[:1]

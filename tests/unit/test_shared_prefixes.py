"""Prompts of one call share a long beginning: it is computed once."""

import pytest

from models.demos.qwen25_7b.config.sampling import GREEDY
from models.demos.qwen25_7b.engine.prefill_batch import WEIGHTS
from models.demos.qwen25_7b.engine.scheduler import BlockPool, Scheduler, Sequence


def prefill(prompts: list[list[int]], *, apart: bool) -> tuple[int, int]:
    """(rows that are computed, batches). apart: each prompt is computed before the next one is admitted."""
    scheduler = Scheduler(BlockPool(2048, 32), slots=32, max_sequences=32, max_prefill_rows=512)
    batches, waiting = [], []
    for user, prompt in enumerate(prompts):
        waiting.append(Sequence(user, prompt, 8, GREEDY, ()))
        scheduler.admit(waiting[-1])
        if apart:
            batches += scheduler.prefill_batches([waiting.pop()])
    batches += scheduler.prefill_batches(waiting) if waiting else []
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

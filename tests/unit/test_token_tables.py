"""The host's tables of token counts equal tables that are counted anew, whatever the slots did before."""

import random

import numpy as np
import pytest
import torch

from models.demos.qwen25_7b.serving.sampling import TokenCounts
from models.demos.qwen25_7b.tt.inputs import MOST_COUNTED
from models.demos.qwen25_7b.serving.token_tables import TokenTables

COLUMNS = 50


def counted(ids: np.ndarray, most: int) -> torch.Tensor:
    counts = torch.from_numpy(ids).bincount(minlength=COLUMNS)
    return counts.clamp(max=most).bfloat16()


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


@pytest.mark.parametrize("seed", range(3))
def test_rows_follow_their_sequences(seed):
    """Sequences enter, leave, grow, are cut back, and change slots by shifts, circles and exchanges. Some are equal."""
    rng = random.Random(seed)
    tables = TokenTables(COLUMNS)
    slots: list = [None] * 32

    def sequence():
        return [rng.randrange(3) for _ in range(rng.randrange(4))], []

    for _ in range(25):
        for slot in range(32):
            if slots[slot] is None and rng.random() < 0.3:
                slots[slot] = sequence()
            elif slots[slot] is not None and rng.random() < 0.1:
                slots[slot] = None
            elif slots[slot] is not None:
                prompt, answer = slots[slot]
                more = [rng.randrange(COLUMNS) for _ in range(rng.choice((0, 1, 1, 5, 300)))]
                answer = answer[:1] if rng.random() < 0.05 else answer + more
                slots[slot] = prompt, answer
        if rng.random() < 0.3:
            shift = rng.randrange(32)
            slots = slots[shift:] + slots[:shift]
        if rng.random() < 0.3:
            rng.shuffle(slots)
        sequences = {
            slot: TokenCounts(*map(array, tokens))
            for slot, tokens in enumerate(slots)
            if tokens is not None and rng.random() < 0.9
        }
        occurrences = rng.random() < 0.7
        tables.update(sequences, occurrences=occurrences)
        for slot, (prompt, answer) in sequences.items():
            row = tables.order[slot]
            seen = counted(np.concatenate([prompt, answer]), 1)
            assert tables.seen[0, 0, row].equal(seen), slot
            if occurrences:
                assert tables.counts[0, 0, row].equal(counted(answer, MOST_COUNTED)), slot

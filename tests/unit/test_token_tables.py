"""The host's tables of token counts are those of the sequences, whatever the slots held before."""

import random

import pytest
import torch

from models.demos.qwen25_7b.engine.sampling import TokenCounts, TokenTables
from models.demos.qwen25_7b.tt.inputs import MOST_COUNTED

COLUMNS = 50


def counted(ids: list[int], most: int) -> torch.Tensor:
    counts = torch.tensor(ids, dtype=torch.long).bincount(minlength=COLUMNS)
    return counts.clamp(max=most).bfloat16()


@pytest.mark.parametrize("occurrences", [True, False])
def test_rows_are_those_of_the_sequences(occurrences):
    rng = random.Random(0)
    tables = TokenTables(COLUMNS)
    for _ in range(5):
        sequences = {
            slot: TokenCounts(*([rng.randrange(9)] * rng.choice((0, 1, 300)) for _ in range(2)))
            for slot in rng.sample(range(32), 20)
        }
        tables.update(sequences, occurrences=occurrences)
        for slot, (prompt, answer) in sequences.items():
            assert tables.seen[0, 0, slot].equal(counted(prompt + answer, 1)), slot
            if occurrences:
                assert tables.counts[0, 0, slot].equal(counted(answer, MOST_COUNTED)), slot

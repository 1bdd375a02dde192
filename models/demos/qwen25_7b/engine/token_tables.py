"""The host's token counts for the chips (TtPenalties), counted anew whenever sequences change slots."""

from typing import Mapping

import numpy as np
import torch

from ..plans.parallel_plan import MAX_USERS
from ..tt.inputs import MOST_COUNTED
from .sampling import TokenCounts


class TokenTables:
    """The two tables [1, 1, 32, columns] bfloat16 of TtPenalties. `update` changes them.

    - seen: 1 for tokens of the prompt or the answer, else 0.
    - counts: occurrences of each token in the answer, up to MOST_COUNTED.

    columns: of all chips.
    """

    def __init__(self, columns: int):
        shape = 1, 1, MAX_USERS, columns
        self.seen, self.counts = (torch.zeros(shape, dtype=torch.bfloat16) for _ in range(2))

    def update(self, sequences: Mapping[int, TokenCounts], *, occurrences: bool = True) -> None:
        """sequences: by slot. occurrences: False leaves `counts` as it is; only some penalties need it."""
        self.seen.zero_()
        if occurrences:
            self.counts.zero_()
        for slot, counts in sequences.items():
            prompt, answer = (torch.from_numpy(np.array(ids, dtype=np.int64)) for ids in counts)
            self.seen[0, 0, slot, prompt] = 1
            self.seen[0, 0, slot, answer] = 1
            if occurrences:
                tokens, times = answer.unique(return_counts=True)
                self.counts[0, 0, slot, tokens] = times.clamp(max=MOST_COUNTED).bfloat16()

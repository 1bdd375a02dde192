"""The host's copies of the chips' token counts (TtPenalties), kept between two changes of the slots."""

from typing import Mapping, NamedTuple

import numpy as np
import torch

from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS
from models.demos.qwen25_7b.serving.sampling import TokenCounts
from models.demos.qwen25_7b.tt.inputs import MOST_COUNTED


class _Tokens(NamedTuple):
    """The tokens of a row of the tables, int32."""

    prompt: np.ndarray
    answer: np.ndarray


class TokenTables:
    """The two tables [32, columns] bfloat16 of TtPenalties. A sequence keeps its row, whatever its slot.

    - seen: 1 for tokens of the prompt or the answer, else 0.
    - counts: occurrences of each token in the answer, up to MOST_COUNTED.

    A sequence that the tables know costs the new tokens of its answer. Rows without a sequence have any numbers.
    columns: of all chips.
    """

    def __init__(self, columns: int):
        # bits of bfloat16
        self._seen, self._counts = (np.zeros((MAX_USERS, columns), np.uint16) for _ in range(2))
        self._rows: dict[int, _Tokens] = {}  # by row
        self._slots: dict[int, int] = {}  # row -> slot
        self._counted = True  # whether counts is up to date

    @property
    def seen(self) -> torch.Tensor:
        """[1, 1, 32, columns]. `update` changes it."""
        return _bfloat16(self._seen)

    @property
    def counts(self) -> torch.Tensor:
        """[1, 1, 32, columns]. `update` changes it."""
        return _bfloat16(self._counts)

    @property
    def order(self) -> list[int]:
        """The row of each slot's sequence; any row for another slot."""
        order = [0] * MAX_USERS
        for row, slot in self._slots.items():
            order[slot] = row
        return order

    def update(self, sequences: Mapping[int, TokenCounts], *, occurrences: bool = True) -> None:
        """sequences: by slot. occurrences: False does not update `counts`, which only some penalties need."""
        if occurrences and not self._counted:
            self._rows = {}
        self._counted = occurrences
        tokens = {slot: _Tokens(*map(_int32, counts)) for slot, counts in sequences.items()}
        rows = self._find(tokens)
        starts = {slot: len(self._rows[row].answer) for slot, row in rows.items()}
        free = (row for row in range(MAX_USERS) if row not in set(rows.values()))
        for slot in tokens:
            if slot not in rows:
                rows[slot] = next(free)
                self._seen[rows[slot]] = 0
                if occurrences:
                    self._counts[rows[slot]] = 0
                self._seen[rows[slot], tokens[slot].prompt] = _bits(np.ones(1))
        columns = self._seen.shape[1]
        new = [
            rows[slot] * columns + of_slot.answer[starts.get(slot, 0) :]
            for slot, of_slot in tokens.items()
        ]
        self._add(np.concatenate(new) if new else _int32([]))
        self._slots = {row: slot for slot, row in rows.items()}
        self._rows = {rows[slot]: of_slot for slot, of_slot in tokens.items()}

    def _find(self, tokens: Mapping[int, _Tokens]) -> dict[int, int]:
        """Return the rows of the sequences that are in the tables, by slot. Equal sequences get different rows."""
        found: dict[int, int] = {}
        left = dict(sorted(self._rows.items(), key=lambda item: self._slots[item[0]]))
        # Sequences mostly stay in the order of their slots.
        for slot, of_slot in sorted(tokens.items()):
            row = next((row for row in left if _continues(of_slot, left[row])), None)
            if row is not None:
                found[slot] = row
                del left[row]
        return found

    def _add(self, places: np.ndarray) -> None:
        """Add tokens of answers. places: row * columns + token."""
        self._seen.reshape(-1)[places] = _bits(np.ones(1))
        if self._counted:
            counts = self._counts.reshape(-1)
            places, times = np.unique(places, return_counts=True)
            earlier = (counts[places].astype(np.uint32) << 16).view(np.float32)
            counts[places] = _bits(np.minimum(earlier + times, MOST_COUNTED))


def _int32(ids) -> np.ndarray:
    """A copy: a caller may reuse its array."""
    return np.array(ids, dtype=np.int32)


def _continues(tokens: _Tokens, earlier: _Tokens) -> bool:
    """Whether these are the earlier tokens and, after them, more of the answer."""
    length = len(earlier.answer)
    return (
        len(tokens.prompt) == len(earlier.prompt)
        and len(tokens.answer) >= length
        # Few tokens tell most sequences apart.
        and tokens.prompt[-1:].tobytes() == earlier.prompt[-1:].tobytes()
        and tokens.answer[:length][-1:].tobytes() == earlier.answer[-1:].tobytes()
        and np.array_equal(tokens.prompt, earlier.prompt)
        and np.array_equal(tokens.answer[:length], earlier.answer)
    )


def _bfloat16(table: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(table.view(np.int16)).view(torch.bfloat16)[None, None]


def _bits(values: np.ndarray) -> np.ndarray:
    """Bits uint16 of numbers that bfloat16 has exactly."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)

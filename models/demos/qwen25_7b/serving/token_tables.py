"""The host's copies of the chips' token counts (TtPenalties), kept between two changes of the slots."""

from typing import Mapping, NamedTuple, Optional

import numpy as np
import torch

from models.demos.qwen25_7b.config import MAX_USERS
from models.demos.qwen25_7b.config.sampling import MOST_COUNTED, TokenCounts

_SPARE = MAX_USERS  # a row that no slot has


class _Tokens(NamedTuple):
    """The tokens that a row of a table has, int32."""

    prompt: np.ndarray
    answer: np.ndarray


class TokenTables:
    """The two tables [1, 1, 32, columns] bfloat16 of TtPenalties, a row for each slot.

    - seen: 1 for tokens of the prompt or the answer, else 0.
    - counts: occurrences of each token in the answer, up to MOST_COUNTED.

    A row moves with its sequence to another slot, and gets the new tokens of the answer. Only a sequence that the tables do
    not know is counted from its start. Rows of other slots have any numbers. columns: of all chips.
    """

    def __init__(self, columns: int):
        # bits of bfloat16
        self._seen, self._counts = (
            np.zeros((MAX_USERS + 1, columns), dtype=np.uint16) for _ in range(2)
        )
        self._rows: dict[int, _Tokens] = {}
        self._counted = True  # whether counts is up to date
        self._shift = 0  # slots that the sequence found last has moved by

    @property
    def seen(self) -> torch.Tensor:
        """`update` changes it."""
        return _bfloat16(self._seen)

    @property
    def counts(self) -> torch.Tensor:
        """`update` changes it."""
        return _bfloat16(self._counts)

    def update(self, sequences: Mapping[int, TokenCounts], *, occurrences: bool = True) -> None:
        """sequences: by slot. occurrences: False leaves `counts` behind, which only some penalties need."""
        if occurrences and not self._counted:
            self._rows = {}
        self._counted = occurrences
        rows = {slot: _Tokens(*map(_int32, tokens)) for slot, tokens in sequences.items()}
        sources = {slot: self._find(slot, tokens) for slot, tokens in rows.items()}
        earlier = {slot: self._rows[row] for slot, row in sources.items() if row is not None}
        self._move({slot: row for slot, row in sources.items() if row not in (None, slot)})
        new = [slot for slot in rows if slot not in earlier]
        for table in self._tables():
            for slot in new:
                table[slot] = 0
        columns = self._seen.shape[1]
        for slot in new:
            self._seen[slot, rows[slot].prompt] = _bits(np.ones(1))
        answers = [
            slot * columns + tokens.answer[len(earlier[slot].answer) if slot in earlier else 0 :]
            for slot, tokens in rows.items()
        ]
        self._add(np.concatenate(answers) if answers else _int32([]))
        self._rows = rows

    def _tables(self) -> list[np.ndarray]:
        return [self._seen, self._counts] if self._counted else [self._seen]

    def _find(self, slot: int, tokens: _Tokens) -> Optional[int]:
        """Return the row of this sequence as it was earlier, or None. Neighboring slots mostly move together."""
        for row in (slot + self._shift, slot, *self._rows):
            if row in self._rows and _continues(tokens, self._rows[row]):
                self._shift = row - slot
                return row
        return None

    def _move(self, sources: dict[int, int]) -> None:
        """Copy row sources[slot] to each slot, each before it is overwritten."""
        while sources:
            needed = set(sources.values())
            slot = next((slot for slot in sources if slot not in needed), None)
            if slot is None:  # the moves are circles: free a row
                slot = next(iter(sources))
                for table in self._tables():
                    table[_SPARE] = table[slot]
                sources = {s: _SPARE if row == slot else row for s, row in sources.items()}
            row = sources.pop(slot)
            for table in self._tables():
                table[slot] = table[row]

    def _add(self, places: np.ndarray) -> None:
        """Add tokens of answers. places: slot * columns + token."""
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
    """Whether these are the earlier tokens and, behind them, more of the answer."""
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
    return torch.from_numpy(table[:MAX_USERS].view(np.int16)).view(torch.bfloat16)[None, None]


def _bits(values: np.ndarray) -> np.ndarray:
    """Bits uint16 of numbers that bfloat16 has exactly."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)

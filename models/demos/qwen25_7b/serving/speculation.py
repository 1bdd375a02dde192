"""Several tokens of a text in one step: guesses of what follows it are computed beside its next token, and kept while they
turn out right.

A tile has 32 rows and weights are read once for all of them, so rows without a text are lent to those that have guesses. Row i
of a text holds its i-th token from the last one on, sees what stands before it, and chooses what follows it: as a step of its
own would have done, noise and all. So the text is that of plain steps; there are fewer of them.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Sequence

import torch

from models.demos.qwen25_7b.plans.blocks import NOWHERE, attention_table
from models.demos.qwen25_7b.plans.grids import ceil_div
from models.demos.qwen25_7b.serving.block_pool import BlockPool

if TYPE_CHECKING:
    from models.demos.qwen25_7b.serving.batch import Text
    from models.demos.qwen25_7b.serving.replica import Replica


class Draft(NamedTuple):
    """What a step computes of a text."""

    text: "Text"
    rows: tuple[int, ...]  # of the batch: the text's own, then those lent to it
    tokens: tuple[int, ...]  # of these rows: the text's last token, then guesses

    def accepted(self, chosen: Sequence[int]) -> list[int]:
        """What follows the text: the choices behind its last token and behind each guess that was right.

        chosen: of every row of the batch.
        """
        choices = [chosen[row] for row in self.rows]
        right = 0
        while right < len(choices) - 1 and self.tokens[right + 1] == choices[right]:
            right += 1
        return choices[: right + 1]


@dataclass
class Tally:
    """Of all texts: how many took part in how many steps, and what they got there."""

    steps: int = 0  # a text in a step
    tokens: int = 0
    guessed: int = 0

    @property
    def right(self) -> int:
        """Guesses that were: each is a step less."""
        return self.tokens - self.steps

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.steps + other.steps, self.tokens + other.tokens, self.guessed + other.guessed)


class Speculation:
    """most: tokens of a text in a step."""

    def __init__(self, replica: "Replica", pool: BlockPool, most: int):
        self._replica, self._pool, self._most = replica, pool, most

    def drafts(self, texts: Sequence["Text"]) -> list[Draft]:
        """For all texts, which have blocks for their next token; nothing where nobody has a guess and a row for it."""
        guesses = {text: self._guesses(text) for text in texts}
        guessing = sum(map(bool, guesses.values()))
        own = {text.row for text in texts}
        idle = [row for row in range(self._replica.batch) if row not in own]
        if not guessing or len(idle) < guessing:
            return []
        each, drafts = len(idle) // guessing, []
        for text in texts:
            guessed = guesses[text][:each]
            guessed = guessed[: self._room(text, len(guessed))]
            lent = [idle.pop(0) for _ in guessed]
            drafts.append(Draft(text, (text.row, *lent), (text.tokens[-1], *guessed)))
        return drafts if any(len(draft.rows) > 1 for draft in drafts) else []

    def place(self, drafts: Sequence[Draft]) -> None:
        """For the replica to verify."""
        batch, width = self._replica.batch, self._replica.width
        tokens, positions = [0] * batch, [NOWHERE] * batch
        tables = [attention_table([], width)] * batch
        # Rows of one text lie in one tile of the cache, which one update must not write twice: the i-th writes all i-th rows.
        writes = [[NOWHERE] * batch for _ in range(self._most)]
        for text, rows, drafted in drafts:
            table = attention_table(text.blocks, width)
            for i, (row, token) in enumerate(zip(rows, drafted)):
                at = len(text.tokens) - 1 + i
                tokens[row], positions[row], tables[row], writes[i][row] = token, at, table, at
        self._replica.place(tokens, positions, torch.stack(tables), writes)

    def _guesses(self, text: "Text") -> list[int]:
        """None past the text's end; none for choices that the chips do not make, or that depend on the tokens before."""
        if not text.sampling.on_device or text.sampling.penalised:
            return []
        return text.repeats.following(text.tokens, min(self._most, text.left) - 1)

    def _room(self, text: "Text", guessed: int) -> int:
        """How many of `guessed` guesses there are blocks for, having taken another if one is free."""
        held = len(text.tokens)  # with its last token, which a step writes
        more = self._pool.take(ceil_div(held + guessed, self._pool.block) - len(text.blocks))
        text.blocks += more or []
        return min(guessed, len(text.blocks) * self._pool.block - held)

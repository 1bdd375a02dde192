"""The rows of decode as the chips have them, which is ahead of what vLLM says while steps are in flight."""

from typing import Optional, Sequence

import torch

from models.demos.qwen25_7b.plans.grids import ceil_div
from models.demos.qwen25_7b.serving.replica import Replica


class DecodeRows:
    def __init__(self, replica: Replica):
        self._replica = replica
        self.anew = (
            True  # whether the step just placed goes on from what vLLM said, not from the chips' own step before
        )
        self._positions: Optional[list[int]] = None  # where the next step writes; None: as vLLM will say
        self._tables: Optional[torch.Tensor] = None
        self._tokens: Optional[list[int]] = None  # what the next step writes; None: the chips know it themselves

    def place(
        self, tokens: torch.Tensor, start_pos: torch.Tensor, page_table: torch.Tensor, *, anew: bool
    ) -> list[int]:
        """For the next step; returns where it writes each row's token, NOWHERE for idle ones.

        tokens [batch, 1], start_pos [batch], page_table [batch, any width]: as vLLM knows them. anew: they are right; else
        tokens and positions may be those of the step before, and the rows go on by themselves. Page tables are right always.
        """
        self.anew = anew = anew or self._positions is None
        positions = start_pos.tolist() if anew else self._positions
        tables = own_blocks(page_table, [position + 1 for position in positions], self._replica)
        if anew:
            self._replica.place(tokens.flatten().tolist(), positions, tables)
        else:
            if not tables.equal(self._tables):
                self._replica.place_tables(tables)
            if self._tokens is not None:
                self._replica.place_tokens(self._tokens)
        self._positions = [position + (position >= 0) for position in positions]
        self._tables, self._tokens = tables, None
        return positions

    def chosen(self, tokens: Sequence[int]) -> None:
        """The host chose what follows the step just placed."""
        self._tokens = list(tokens)

    def forget(self) -> None:
        """The next step is placed anew: vLLM chooses, or the chips' tokens are those of a prompt."""
        self._positions = None


def own_blocks(page_table: torch.Tensor, tokens: Sequence[int], replica: Replica) -> torch.Tensor:
    """[rows, width of the replica's tables] int32: each row's blocks for that many tokens, and block 0 behind them.

    page_table: [rows, any width]; behind a row's own blocks it names others' blocks. Block 0 is nobody's in vLLM.
    """
    width = min(page_table.shape[1], replica.width)
    own = torch.tensor([ceil_div(n, replica.block) for n in tokens])[:, None]
    tables = torch.zeros(len(page_table), replica.width, dtype=torch.int32)
    tables[:, :width] = torch.where(torch.arange(width) < own, page_table[:, :width], 0)
    return tables

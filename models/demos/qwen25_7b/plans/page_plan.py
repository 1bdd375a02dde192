"""How a cache's blocks are dealt out to users."""

from dataclasses import dataclass
from typing import Sequence

import torch

from models.demos.qwen25_7b.plans.grids import ceil_div, padded_prompt

BLOCK = 32  # tokens in a block


@dataclass(frozen=True)
class PagePlan:
    """How many blocks there are, and which belong to whom.

    The last block belongs to nobody: rows of the batch that have no user, and page table entries past a user's last
    block, point at it, so whatever is written there harms no one.
    """

    users: int
    blocks_per_user: int
    table_width: int  # entries of a user's page table: as many as the longest padded prompt has blocks

    @classmethod
    def make(cls, users: int, max_seq_len: int) -> "PagePlan":
        return cls(users, ceil_div(max_seq_len, BLOCK), padded_prompt(max_seq_len) // BLOCK)

    @property
    def blocks(self) -> int:
        return self.users * self.blocks_per_user + 1

    @property
    def nobodys(self) -> int:
        return self.blocks - 1

    def table(self, blocks: Sequence[int]) -> torch.Tensor:
        """[table_width] int32: a user's blocks in the order of its tokens, then nobody's."""
        table = torch.full((self.table_width,), self.nobodys, dtype=torch.int32)
        table[: len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        return table

    def blocks_of(self, user: int, tokens: int) -> range:
        """The blocks that hold the first `tokens` tokens of a user."""
        first = user * self.blocks_per_user
        return range(first, first + ceil_div(tokens, BLOCK))

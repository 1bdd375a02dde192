"""How a cache's blocks are dealt out to users, and how page tables say so."""

from dataclasses import dataclass
from typing import Sequence

import torch

from models.demos.qwen25_7b.plans.grids import ceil_div

BLOCK = 32  # tokens in a block
NO_BLOCK = -1  # what paged_fill_cache skips
NOWHERE = -1  # the position of a row without a user: the cache update writes nothing for it, attention reads nothing


@dataclass(frozen=True)
class PagePlan:
    """How many blocks there are, and which belong to whom. Every block is somebody's."""

    users: int
    blocks_per_user: int

    @classmethod
    def make(cls, users: int, max_seq_len: int) -> "PagePlan":
        return cls(users, ceil_div(max_seq_len, BLOCK))

    @property
    def blocks(self) -> int:
        return self.users * self.blocks_per_user

    def blocks_of(self, user: int, tokens: int) -> range:
        """The blocks that hold the first `tokens` tokens of a user."""
        first = user * self.blocks_per_user
        return range(first, first + ceil_div(tokens, BLOCK))

    def decode_table(self, blocks: Sequence[int]) -> torch.Tensor:
        """[blocks_per_user] int32: a user's blocks in the order of its tokens.

        Behind them stands a block that exists: attention may read whole chunks of keys and mask what is past the user's.
        """
        return _listed(blocks, self.blocks_per_user, behind=0)


def prefill_table(blocks: Sequence[int], rows: int) -> torch.Tensor:
    """[rows / BLOCK] int32: where the rows of a padded prompt are written; rows past `blocks` are not.

    blocks: the user's, in order; they may reach beyond the prompt.
    """
    return _listed(blocks[: rows // BLOCK], rows // BLOCK, behind=NO_BLOCK)


def _listed(blocks: Sequence[int], width: int, behind: int) -> torch.Tensor:
    table = torch.full((width,), behind, dtype=torch.int32)
    table[: len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
    return table

"""The paged cache in numbers: blocks of tokens, and the tables that deal them out to texts."""

from typing import Sequence

import torch

from models.common.errors import UserError
from models.demos.qwen25_7b.plans.grids import ceil_div

BLOCK = 32  # tokens in a block, unless somebody says otherwise
BLOCKS = (32, 64, 128)  # what it may be: whole tiles, and no more than attention takes at a time
NO_BLOCK = -1  # what paged_fill_cache skips
NOWHERE = -1  # the position of a row without a text: the cache update writes nothing for it, attention reads nothing
ENTRIES = 8  # the width of a table for chunked attention is a multiple: it reads 32 bytes at a time
MOST_KEYS = 512  # tokens that chunked attention takes from the cache at a time; its table must cover the last of them


def check_block(block: int) -> None:
    if block not in BLOCKS:
        raise UserError(f"a cache's block is {', '.join(map(str, BLOCKS[:-1]))} or {BLOCKS[-1]} tokens, got {block}")


def table_width(max_seq_len: int, block: int) -> int:
    """Entries of a text's table in decode: no more than there are blocks, as the cache update wants it."""
    return ceil_div(max_seq_len, block)


def continued_width(width: int, block: int) -> int:
    """Entries of its table where a pass goes on from what the cache holds."""
    step = max(ENTRIES, MOST_KEYS // block)
    return ceil_div(width, step) * step


def blocks_for(texts: int, max_seq_len: int, block: int) -> int:
    """Blocks that hold `texts` texts of up to max_seq_len tokens."""
    return texts * table_width(max_seq_len, block)


def equal_shares(blocks: int, texts: int) -> list[range]:
    """All blocks dealt out evenly, for whoever needs no allocator."""
    own = blocks // texts
    return [range(i * own, (i + 1) * own) for i in range(texts)]


def attention_table(blocks: Sequence[int], width: int) -> torch.Tensor:
    """[width] int32: a text's blocks in the order of its tokens, and behind them a block that exists: attention reads whole
    chunks of keys and masks what is past the text's own."""
    return _listed(blocks, width, behind=0)


def fill_table(blocks: Sequence[int], width: int) -> torch.Tensor:
    """[width] int32: where blocks of rows are written; NO_BLOCK among `blocks`, and behind them, is nowhere."""
    return _listed(blocks, width, behind=NO_BLOCK)


def _listed(blocks: Sequence[int], width: int, behind: int) -> torch.Tensor:
    table = torch.full((width,), behind, dtype=torch.int32)
    table[: len(blocks)] = torch.tensor(list(blocks), dtype=torch.int32)
    return table

"""The paged cache in numbers: blocks of tokens, and the tables that deal them out to texts."""

from typing import Sequence

import torch

from models.common.errors import UserError
from models.demos.qwen25_7b.plans.grids import ceil_div

BLOCK = 32  # tokens in a block, unless somebody says otherwise
BLOCKS = (32, 64, 128)  # what it may be: whole tiles, and no more than attention takes at a time
NO_BLOCK = -1  # what paged_fill_cache skips
NOWHERE = -1  # the position of a row without a text: the cache update writes nothing for it, attention reads nothing
DECODE_KEYS = (32, 64, 128, 256, 512)  # what a step's attention may take at a time
ENTRIES = 8  # the width of a table for chunked attention is a multiple: it reads 32 bytes at a time
MOST_KEYS = 512  # tokens that chunked attention takes from the cache at a time; its table must cover the last of them


def check_block(block: int) -> None:
    if block not in BLOCKS:
        raise UserError(f"a cache's block is {', '.join(map(str, BLOCKS[:-1]))} or {BLOCKS[-1]} tokens, got {block}")


def table_width(max_seq_len: int, block: int) -> int:
    """Entries of a text's table in decode: whole chunks of keys, so that attention never reads past it.

    The cache must have as many blocks: its update refuses a table that is wider.
    """
    step = max(block, next((keys for keys in DECODE_KEYS if keys >= max_seq_len), _most_keys(max_seq_len)))
    return ceil_div(max_seq_len, step) * (step // block)


def decode_keys(tokens: int) -> int:
    """Keys that a step's attention takes at a time from tables of `tokens` tokens.

    A core rounds its running result to bfloat16 with every chunk: 32 users of 8192 tokens, a core for each KV head, come out
    5.8 % off with chunks of 32, 1.7 % with 128, 0.9 % with 512 (the golden mesh's arithmetic, tp 1). Longer chunks are also
    longer reads; but the last one is read whole, half of it for nothing on average. So: some 32 to 64 chunks a text.
    """
    return next(keys for keys in reversed(DECODE_KEYS) if keys <= _most_keys(tokens) and tokens % keys == 0)


def _most_keys(tokens: int) -> int:
    return 128 if tokens <= 4096 else 256 if tokens <= 16384 else 512


def continued_width(width: int, rows: int, block: int) -> int:
    """Entries of its table where a pass of `rows` rows goes on from what the cache holds. Attention reads as far as the rows
    go, those of padding too, which may be past the longest text. width: as in decode."""
    step = max(ENTRIES, MOST_KEYS // block)
    return ceil_div(width + ceil_div(rows, block), step) * step


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


def attention_tables(texts: Sequence[Sequence[int]], width: int) -> torch.Tensor:
    """[texts, width] int32: of the blocks of each."""
    return torch.stack([attention_table(blocks, width) for blocks in texts])


def fill_table(blocks: Sequence[int], width: int) -> torch.Tensor:
    """[width] int32: where blocks of rows are written; NO_BLOCK among `blocks`, and behind them, is nowhere."""
    return _listed(blocks, width, behind=NO_BLOCK)


def _listed(blocks: Sequence[int], width: int, behind: int) -> torch.Tensor:
    table = torch.full((width,), behind, dtype=torch.int32)
    table[: len(blocks)] = torch.tensor(list(blocks), dtype=torch.int32)
    return table

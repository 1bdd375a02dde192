"""The paged cache in numbers: blocks of tokens, and the tables that give blocks to sequences."""

from typing import Sequence

import torch

from ..errors import UserError
from .grids import ceil_div

BLOCK = 32  # tokens in a block, by default
BLOCKS = (32, 64, 128)  # sizes of a block: whole tiles, at most one k chunk of attention
NO_BLOCK = -1  # an entry that paged_fill_cache skips
INACTIVE = -1  # position of a slot without a sequence: cache update and attention skip it
DECODE_K_CHUNKS = (32, 64, 128, 256, 512)  # what a step's attention may take at a time
ENTRIES = 8  # chunked attention reads its table 8 entries (32 bytes) at a time
# Tokens that chunked attention takes at a time; its table must cover the last chunk. All starts of chunks are
# multiples, see chunk_step, so longer chunks of keys would be more rows to compute again.
MAX_K_CHUNK = 256


def check_block(block: int, name: str = "a cache's block") -> None:
    if block not in BLOCKS:
        raise UserError(f"{name} must be {', '.join(map(str, BLOCKS[:-1]))} or {BLOCKS[-1]} tokens, got {block}")


def table_width(max_seq_len: int, block: int) -> int:
    """Entries of a sequence's table in decode: whole chunks of keys, so that attention never reads past the table.

    The cache update refuses a table with more entries than the cache has blocks.
    """
    return whole_chunks(ceil_div(max_seq_len, block), max_seq_len, block)


def whole_chunks(blocks: int, max_seq_len: int, block: int) -> int:
    """The least number of blocks from `blocks` on that makes whole chunks of keys."""
    each = _max_k_chunk(max_seq_len) // block
    return ceil_div(blocks, each) * each


def decode_k_chunk(tokens: int, most: int) -> int:
    """Keys that decode attention takes at a time from a table of `tokens` tokens, at most `most` (Chip.k_chunk).

    A core rounds its running result to bfloat16 after every chunk, so fewer chunks are more exact (docs/decisions.md).
    The last chunk is read whole, and half of the read is wasted on average. 32 to 64 chunks a sequence balance both.
    """
    most = min(most, _max_k_chunk(tokens))
    return next(keys for keys in reversed(DECODE_K_CHUNKS) if keys <= most and tokens % keys == 0)


def _max_k_chunk(tokens: int) -> int:
    return 128 if tokens <= 4096 else 256 if tokens <= 16384 else 512


def chunked_table_width(width: int, rows: int, block: int) -> int:
    """Entries of the block table for a chunked prefill of `rows` rows. width: of the table in decode.

    Attention reads as far as the last row, and rows of padding may lie past the longest sequence.
    """
    step = max(ENTRIES, MAX_K_CHUNK // block)
    return ceil_div(width + ceil_div(rows, block), step) * step


def blocks_for(sequences: int, max_seq_len: int, block: int) -> int:
    """Blocks for `sequences` sequences of up to max_seq_len tokens."""
    return sequences * table_width(max_seq_len, block)


def equal_shares(blocks: int, sequences: int) -> list[range]:
    """An equal share of all blocks for each sequence: an allocation without an allocator."""
    own = blocks // sequences
    return [range(i * own, (i + 1) * own) for i in range(sequences)]


def attention_table(blocks: Sequence[int], width: int) -> torch.Tensor:
    """[width] int32: a sequence's blocks in the order of its tokens, then block 0.

    Attention reads whole chunks of keys, so every entry must name a block that exists; it masks keys past the sequence.
    """
    return _listed(blocks, width, padding=0)


def attention_tables(blocks: Sequence[Sequence[int]], width: int) -> torch.Tensor:
    """[sequences, width] int32. blocks: of each sequence."""
    return torch.stack([attention_table(own, width) for own in blocks])


def fill_table(blocks: Sequence[int], width: int) -> torch.Tensor:
    """[width] int32: the cache block of each block of rows; NO_BLOCK, also after `blocks`, writes nothing."""
    return _listed(blocks, width, padding=NO_BLOCK)


def _listed(blocks: Sequence[int], width: int, padding: int) -> torch.Tensor:
    table = torch.full((width,), padding, dtype=torch.int32)
    table[: len(blocks)] = torch.tensor(list(blocks), dtype=torch.int32)
    return table

"""Prompts packed and cut into prefill batches: pure functions."""

from dataclasses import dataclass
from typing import Iterator, Sequence

import torch

from models.demos.qwen25_7b.config import MAX_USERS
from models.demos.qwen25_7b.plans.blocks import (
    NO_BLOCK,
    attention_table,
    chunked_table_width,
    fill_table,
)
from models.demos.qwen25_7b.plans.grids import TILE, ceil_div, padded_rows
from models.demos.qwen25_7b.plans.prefill_plan import q_chunk_size
from models.demos.qwen25_7b.tt.inputs import ChunkedPrefillInputs, PrefillInputs


@dataclass(frozen=True)
class Prompt:
    """The tokens of one sequence to prefill. The cache holds the first `num_cached` tokens."""

    slot: int  # the logits behind the last token are sampled with this slot's parameters
    tokens: Sequence[int]
    num_cached: int
    blocks: Sequence[int]  # of the sequence, in the order of its tokens


@dataclass(frozen=True)
class PrefillChunk:
    """The positions from `start` to before `end` of a prompt.

    The batch writes positions from `write_start` on to the cache. The cache holds the
    positions before. They are computed again, because attention starts at a multiple of its chunk size.
    """

    prompt: Prompt
    start: int
    write_start: int
    end: int

    @property
    def is_last(self) -> bool:
        return self.end == len(self.prompt.tokens)

    @property
    def tokens(self) -> Sequence[int]:
        return self.prompt.tokens[self.start : self.end]


@dataclass(frozen=True)
class PrefillBatch:
    """The chunks that one prefill forward computes, in `rows` rows (padding included).

    - chunked: one chunk behind a cached prefix (chunked prefill). Otherwise the batch has whole prompts
      side by side, or the first chunk of one prompt.
    - sampled_rows: up to 32 rows; slots 0, 1, ... get their logits. By default each prompt's slot gets
      the logits of its last token.
    """

    rows: int
    chunks: tuple[PrefillChunk, ...]
    chunked: bool
    sampled_rows: tuple[int, ...] = ()

    @property
    def sampled_slots(self) -> list[int]:
        """The slots that get a token: those of prompts that end in this batch."""
        if self.sampled_rows:
            return list(range(len(self.sampled_rows)))
        return [chunk.prompt.slot for chunk in self.chunks if chunk.is_last]


def plan_prefill(prompts: Sequence[Prompt], max_rows: int, block: int) -> list[PrefillBatch]:
    """Pack short prompts side by side and cut long prompts into chunks. Keep the order of the prompts.

    Each prompt starts at a multiple of `block`.
    max_rows: rows of the largest batch. block: tokens in a cache block.
    """
    batches: list[PrefillBatch] = []
    packed: list[Prompt] = []
    used = 0

    def flush() -> None:
        nonlocal packed, used
        if packed:
            chunks = tuple(PrefillChunk(prompt, 0, 0, len(prompt.tokens)) for prompt in packed)
            rows = used if len(packed) > 1 else len(packed[0].tokens)
            batches.append(PrefillBatch(padded_rows(rows), chunks, chunked=False))
        packed = []
        used = 0

    for prompt in prompts:
        if prompt.num_cached or len(prompt.tokens) > max_rows:
            flush()
            batches += _cut(prompt, max_rows, block)
            continue
        rows = ceil_div(len(prompt.tokens), block) * block
        if used + rows > max_rows or len(packed) == MAX_USERS:
            flush()
        packed.append(prompt)
        used += rows
    flush()
    return batches


def prefill_sizes(max_rows: int) -> list[int]:
    """Return the numbers of rows that a batch may have: powers of two from 32 to max_rows."""
    return [TILE << i for i in range((max_rows // TILE).bit_length())]


def _cut(prompt: Prompt, max_rows: int, block: int) -> Iterator[PrefillBatch]:
    """Yield the batches of one long or partly cached prompt, one chunk each."""
    at = prompt.num_cached
    end = len(prompt.tokens)
    while at < end:
        rows, start = max_rows, 0
        if at > 0:
            sizes = prefill_sizes(max_rows)
            fitting = (rows for rows in sizes if end - chunk_start(at, rows, block) <= rows)
            rows = next(fitting, max_rows)
            start = chunk_start(at, rows, block)
        chunk = PrefillChunk(prompt, start, at // block * block, min(end, start + rows))
        yield PrefillBatch(rows, (chunk,), chunked=start > 0)
        at = chunk.end


def chunk_start(at: int, rows: int, block: int) -> int:
    """Return the first position of the chunk of `rows` rows that computes position `at`.

    Attention starts at multiples of its chunk size, and the cache is written in whole blocks.
    """
    step = max(block, q_chunk_size(rows))
    return at // step * step


def prefill_inputs(
    batch: PrefillBatch, block: int, width: int
) -> PrefillInputs | ChunkedPrefillInputs:
    """Return the batch's inputs as torch values. width: entries of a sequence's block table in decode."""
    tokens = torch.zeros(1, 1, 1, batch.rows, dtype=torch.int32)
    positions = torch.zeros(1, batch.rows, dtype=torch.int32)
    rows = torch.zeros(1, MAX_USERS, dtype=torch.int32)
    blocks: list[int] = []
    starts: list[int] = []
    at = 0
    for chunk in batch.chunks:
        size = chunk.end - chunk.start
        tokens[..., at : at + size] = torch.tensor(list(chunk.tokens), dtype=torch.int32)
        positions[:, at : at + size] = torch.arange(chunk.start, chunk.end)
        rows[:, chunk.prompt.slot] = at + size - 1
        blocks += _written_blocks(chunk, block)
        starts.append(at)
        at += ceil_div(size, block) * block
    rows[0, : len(batch.sampled_rows)] = torch.tensor(batch.sampled_rows, dtype=torch.int32)
    table = fill_table(blocks, ceil_div(batch.rows, block))[None]
    if batch.chunked:
        (chunk,) = batch.chunks
        table_width = chunked_table_width(width, batch.rows, block)
        page_table = attention_table(chunk.prompt.blocks, table_width)[None]
        start = torch.tensor([chunk.start], dtype=torch.int32)
        return ChunkedPrefillInputs(tokens, positions, table, rows, start, page_table)
    windows = _windows([*starts, min(at, batch.rows)], batch.rows)
    return PrefillInputs(tokens, positions, table, rows, windows)


def _windows(bounds: Sequence[int], rows: int) -> torch.Tensor:
    """[rows / 32 + 1] int32: the bounds of the prompts' rows and of the padding, then `rows` repeated."""
    windows = torch.full((rows // TILE + 1,), rows, dtype=torch.int32)
    windows[: len(bounds)] = torch.tensor(bounds, dtype=torch.int32)
    return windows


def _written_blocks(chunk: PrefillChunk, block: int) -> list[int]:
    """Return the cache block that each block of the chunk's rows is written to, or NO_BLOCK."""
    inside = range(chunk.start // block, ceil_div(chunk.end, block))
    return [chunk.prompt.blocks[i] if i * block >= chunk.write_start else NO_BLOCK for i in inside]

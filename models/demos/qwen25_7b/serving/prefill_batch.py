"""PrefillBatch: the chunks of prompts that one prefill forward computes, and its device inputs. Pure functions.

prefill_packing.py decides which chunks form a batch.
"""

from dataclasses import dataclass
from typing import NamedTuple, Sequence

import torch

from models.demos.qwen25_7b.config import MAX_USERS
from models.demos.qwen25_7b.plans.blocks import (
    NO_BLOCK,
    attention_table,
    chunked_table_width,
    fill_table,
)
from models.demos.qwen25_7b.plans.grids import TILE, ceil_div
from models.demos.qwen25_7b.plans.key_table import KeyTable
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

    The batch writes positions from `write_start` on to the cache. The cache holds the positions before. They are
    computed again where attention starts at a multiple of its chunk size, or where the batch has one start.
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


class PrefillKind(NamedTuple):
    """The key of a prefill batch's programs. samples: whether a prompt ends in the batch. Else as in PrefillBatch."""

    rows: int
    chunked: bool
    samples: bool = True
    sequences: int = 1


@dataclass(frozen=True)
class PrefillBatch:
    """The chunks that one prefill forward computes, in `rows` rows (padding included).

    - chunked: the chunks lie behind cached prefixes and have one start (chunked prefill). Otherwise the
      batch has prompts side by side, each from its first token.
    - sequences: of a chunked batch; each has an equal share of the rows. A share without a chunk is padding.
    - sampled_rows: up to 32 rows; slots 0, 1, ... get their logits. By default each prompt's slot gets
      the logits of its last token.
    """

    rows: int
    chunks: tuple[PrefillChunk, ...]
    chunked: bool
    sequences: int = 1
    sampled_rows: tuple[int, ...] = ()

    @property
    def kind(self) -> PrefillKind:
        return PrefillKind(self.rows, self.chunked, bool(self.sampled_slots), self.sequences)

    @property
    def sampled_slots(self) -> list[int]:
        """The slots that get a token: those of prompts that end in this batch."""
        if self.sampled_rows:
            return list(range(len(self.sampled_rows)))
        return [chunk.prompt.slot for chunk in self.chunks if chunk.is_last]


def prefill_inputs(
    batch: PrefillBatch, block: int, width: int, key_table: KeyTable
) -> PrefillInputs | ChunkedPrefillInputs:
    """Return the batch's inputs as torch values. width: entries of a sequence's block table in decode."""
    return (_chunked_inputs if batch.chunked else _whole_inputs)(batch, block, width, key_table)


def _whole_inputs(
    batch: PrefillBatch, block: int, width: int, key_table: KeyTable
) -> PrefillInputs:
    """Each prompt begins where a block of rows begins."""
    starts: list[int] = []
    blocks: list[int] = []
    positions = torch.zeros(1, batch.rows, dtype=torch.int32)
    at = 0
    for chunk in batch.chunks:
        size = chunk.end - chunk.start
        starts.append(at)
        positions[:, at : at + size] = torch.arange(chunk.start, chunk.end)
        blocks += _written_blocks(chunk, block)
        at += ceil_div(size, block) * block
    table = fill_table(blocks, ceil_div(batch.rows, block))[None]
    windows = _windows([*starts, min(at, batch.rows)], batch.rows)
    tokens, logits_rows = _tokens_and_logits_rows(batch, starts)
    key_rows = key_table.prefill_rows(positions)
    return PrefillInputs(tokens, positions, key_rows, table, logits_rows, windows)


def _chunked_inputs(
    batch: PrefillBatch, block: int, width: int, key_table: KeyTable
) -> ChunkedPrefillInputs:
    sequences, rows_each = batch.sequences, batch.rows // batch.sequences
    start, end = batch.chunks[0].start, max(chunk.end for chunk in batch.chunks)
    positions = torch.zeros(1, rows_each, dtype=torch.int32)
    positions[:, : end - start] = torch.arange(start, end)
    padding = [()] * (sequences - len(batch.chunks))
    written = [_written_blocks(chunk, block) for chunk in batch.chunks]
    fill = [fill_table(own, ceil_div(rows_each, block)) for own in (*written, *padding)]
    table_width = chunked_table_width(width, rows_each, block)
    read = [chunk.prompt.blocks for chunk in batch.chunks]
    pages = [attention_table(own, table_width) for own in (*read, *padding)]
    tokens, logits_rows = _tokens_and_logits_rows(batch, range(0, batch.rows, rows_each))
    return ChunkedPrefillInputs(
        tokens,
        positions,
        key_table.prefill_rows(positions, sequences),
        torch.stack(fill),
        logits_rows,
        torch.tensor([start], dtype=torch.int32),
        torch.stack(pages),
        torch.arange(sequences, dtype=torch.int32),
    )


def blank_inputs(
    kind: PrefillKind, block: int, width: int, key_table: KeyTable
) -> PrefillInputs | ChunkedPrefillInputs:
    """Return inputs of a kind of batch that write nothing, as torch values."""
    nothing = PrefillChunk(Prompt(0, (), 0, ()), 0, 0, 0)
    batch = PrefillBatch(kind.rows, (nothing,), kind.chunked, kind.sequences)
    return prefill_inputs(batch, block, width, key_table)


def _tokens_and_logits_rows(
    batch: PrefillBatch, starts: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """[1, 1, 1, rows] and [1, 32] int32. starts: the row where each chunk begins."""
    tokens = torch.zeros(1, 1, 1, batch.rows, dtype=torch.int32)
    logits_rows = torch.zeros(1, MAX_USERS, dtype=torch.int32)
    for chunk, at in zip(batch.chunks, starts):
        end = at + chunk.end - chunk.start
        tokens[..., at:end] = torch.tensor(list(chunk.tokens), dtype=torch.int32)
        logits_rows[:, chunk.prompt.slot] = max(end - 1, 0)
    logits_rows[0, : len(batch.sampled_rows)] = torch.tensor(batch.sampled_rows, dtype=torch.int32)
    return tokens, logits_rows


def _windows(bounds: Sequence[int], rows: int) -> torch.Tensor:
    """[rows / 32 + 1] int32: the bounds of the prompts' rows and of the padding, then `rows` repeated."""
    windows = torch.full((rows // TILE + 1,), rows, dtype=torch.int32)
    windows[: len(bounds)] = torch.tensor(bounds, dtype=torch.int32)
    return windows


def _written_blocks(chunk: PrefillChunk, block: int) -> list[int]:
    """Return the cache block that each block of the chunk's rows is written to, or NO_BLOCK."""
    inside = range(chunk.start // block, ceil_div(chunk.end, block))
    return [chunk.prompt.blocks[i] if i * block >= chunk.write_start else NO_BLOCK for i in inside]

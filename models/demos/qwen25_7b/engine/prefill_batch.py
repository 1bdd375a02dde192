"""Prefill batches: which chunks of prompts one prefill forward computes, and its device inputs. Pure functions.

A batch reads all weights once, so few batches are fast. Two forms of a batch hold several prompts:

- Whole prompts side by side, each from its first token.
- Chunks after cached prefixes, with one start for all, because attention takes one start. Where a prefix is longer
  than the start, the tokens between are computed again, and not written: other sequences may share their blocks.
"""

from dataclasses import dataclass, replace
from math import inf
from typing import Iterator, NamedTuple, Optional, Sequence

import torch

from ..plans.blocks import NO_BLOCK, attention_table, chunked_table_width, fill_table, table_width
from ..plans.grids import TILE, ceil_div, padded_rows
from ..plans.parallel_plan import MAX_USERS
from ..plans.prefill_plan import MAX_K_CHUNKS, chunk_step
from ..tt.inputs import AnyPrefillInputs, ChunkedPrefillInputs, PrefillInputs, prefill_key_rows
from ..tt.model_config import TtModelConfig

# What reading all weights costs, in rows to compute. Modeled: 260 rows on T3K, 370 on N300, thousands on N150.
WEIGHTS = 256


@dataclass(frozen=True)
class Prompt:
    """The tokens of one sequence to prefill. The cache holds the first `num_cached` tokens."""

    slot: int  # the logits after the last token are sampled with this slot's parameters
    tokens: Sequence[int]
    num_cached: int
    blocks: Sequence[int]  # the sequence's, in the order of its tokens


@dataclass(frozen=True)
class PrefillChunk:
    """The positions from `start` to before `end` of a prompt.

    The cache holds the first `num_cached` positions; the batch writes the others. Positions between `start` and
    `num_cached` are computed again where attention starts at a multiple of its chunk size, or where the batch has one
    start.
    """

    prompt: Prompt
    start: int
    num_cached: int
    end: int

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

    - chunked: the chunks follow cached prefixes and have one start (chunked prefill). Otherwise the
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
        return [chunk.prompt.slot for chunk in self.chunks if chunk.end == len(chunk.prompt.tokens)]


def prefill_kinds(max_rows: int, slots: int) -> list[PrefillKind]:
    """Return all kinds of batches that `pack_prompts` gives for up to `slots` prompts, the most frequent first."""
    sizes = _sizes(max_rows)
    alone = [PrefillKind(rows, chunked) for rows in sizes for chunked in (False, True)]  # or whole prompts
    full = [PrefillKind(max_rows, chunked, samples=False) for chunked in (False, True)]  # of long prompts
    shares = [1 << i for i in range(1, (slots - 1).bit_length() + 1)]
    several = [PrefillKind(rows, True, sequences=n) for rows in sizes for n in shares if rows // n >= TILE]
    return alone + full + several


# ---- packing: which prompts share a batch


def pack_prompts(prompts: Sequence[Prompt], max_rows: int, block: int) -> list[PrefillBatch]:
    """Return the batches to launch, in order.

    - A prompt that is longer than a batch is cut into full chunks of max_rows rows, each a batch of its own.
    - Prompts that would leave much of a batch empty share batches of their beginnings, see `_cut_together`.
    - The rests of all prompts are packed, see `_pack`.
    - A batch comes after the batches that write what it reads: the earlier chunks of its prompts, and cached blocks
      that an earlier prompt of the list writes. Apart from that, batches keep the order of their first prompts.

    block: tokens in a cache block.
    """
    order = {prompt.slot: i for i, prompt in enumerate(prompts)}
    batches: list[PrefillBatch] = []
    for wave in _waves(prompts, block):
        full, rests = {}, []
        for prompt in wave:
            *full[prompt.slot], rest = _cut(prompt, max_rows, block)
            rests += rest.chunks
        beginnings, packed = _cut_together(rests, max_rows, block)
        batches += beginnings
        for batch in sorted(packed, key=lambda batch: min(order[chunk.prompt.slot] for chunk in batch.chunks)):
            batches += [earlier for chunk in batch.chunks for earlier in full[chunk.prompt.slot]]
            batches.append(batch)
    return batches


def _waves(prompts: Sequence[Prompt], block: int) -> list[list[Prompt]]:
    """Divide the prompts: each reads cached blocks of earlier waves only. vLLM shares blocks within a call."""
    waves: list[list[Prompt]] = []
    wave_of_block: dict[int, int] = {}  # for each block that these prompts write
    for prompt in prompts:
        cached = prompt.num_cached // block
        wave = 1 + max((wave_of_block.get(b, -1) for b in prompt.blocks[:cached]), default=-1)
        wave_of_block |= dict.fromkeys(prompt.blocks[cached:], wave)
        waves += [[] for _ in range(wave + 1 - len(waves))]
        waves[wave].append(prompt)
    return waves


def _cut(prompt: Prompt, max_rows: int, block: int) -> Iterator[PrefillBatch]:
    """Yield the prompt's batches, if no other prompt shares them: full chunks, then the rest."""
    step, at = chunk_step(max_rows, block), prompt.num_cached
    rest = PrefillChunk(prompt, at, at // block * block, len(prompt.tokens))
    while (last := _smallest_batch([rest], max_rows, block)) is None:
        start = rest.start // step * step
        at = start + max_rows
        yield PrefillBatch(max_rows, (replace(rest, start=start, end=at),), chunked=start > 0)
        rest = replace(rest, start=at, num_cached=at // block * block)
    yield last


def _cut_together(
    rests: list[PrefillChunk], max_rows: int, block: int
) -> tuple[list[PrefillBatch], list[PrefillBatch]]:
    """Return batches of several prompts' beginnings, and packed batches of the rests, in the way that costs least.

    The beginnings fill their batches. 16 prompts of 552 tokens are 8 batches of 2 times 512, and one of 16 times 40.
    """
    ways = [([], list(_pack(rests, max_rows, block)))]
    for share in (2, 4):
        cut = max_rows // share
        # With a longer rest, a batch gains less than it costs.
        fitting = [chunk for chunk in rests if chunk.num_cached == 0 and cut < chunk.end <= cut * 3 // 2]
        chosen = fitting[: len(fitting) // share * share]
        if not chosen or cut % block:
            continue
        first = [replace(chunk, start=0, end=cut) for chunk in chosen]
        groups = [tuple(first[i : i + share]) for i in range(0, len(first), share)]
        beginnings = [PrefillBatch(max_rows, group, chunked=False) for group in groups]
        left = [chunk for chunk in rests if chunk not in chosen]
        left += [replace(chunk, start=cut, num_cached=cut) for chunk in chosen]
        ways.append((beginnings, list(_pack(left, max_rows, block))))
    # A batch reads all weights, and computes its rows.
    return min(ways, key=lambda way: sum(WEIGHTS + batch.rows for batches in way for batch in batches))


def _pack(chunks: list[PrefillChunk], max_rows: int, block: int) -> Iterator[PrefillBatch]:
    """Yield batches of the chunks, in the order of their starts, the longest first: as many in a batch as save most.

    A batch costs its rows and WEIGHTS. It costs no more than its chunks alone.
    """
    rests = [_smallest_batch([chunk], max_rows, block) for chunk in chunks]
    rests.sort(key=lambda rest: (rest.chunks[0].num_cached, -rest.rows))
    while rests:
        cheapest, least, alone = rests[0], inf, 0
        for count, rest in enumerate(rests, 1):
            batch = _smallest_batch([rest.chunks[0] for rest in rests[:count]], max_rows, block)
            if batch is None:
                break
            alone += rest.rows + WEIGHTS
            if (batch.rows + WEIGHTS) / alone < least:
                cheapest, least = batch, (batch.rows + WEIGHTS) / alone
        yield cheapest
        rests = rests[len(cheapest.chunks) :]


def _smallest_batch(chunks: Sequence[PrefillChunk], max_rows: int, block: int) -> Optional[PrefillBatch]:
    """A batch of these chunks in the form that takes fewer rows; None if they fit in no form."""
    forms = _after_prefixes(chunks, max_rows, block), _side_by_side(chunks, max_rows, block)
    return min(filter(None, forms), key=lambda batch: batch.rows, default=None)


def _side_by_side(chunks: Sequence[PrefillChunk], max_rows: int, block: int) -> Optional[PrefillBatch]:
    """The smallest batch of whole prompts; None if they do not fit. A prompt begins where a block begins."""
    before = sum(ceil_div(chunk.end, block) * block for chunk in chunks[:-1])
    rows = padded_rows(before + chunks[-1].end)
    whole = tuple(replace(chunk, start=0) for chunk in chunks)
    return PrefillBatch(rows, whole, chunked=False) if rows <= max_rows else None


def _after_prefixes(chunks: Sequence[PrefillChunk], max_rows: int, block: int) -> Optional[PrefillBatch]:
    """The smallest batch of chunks with one start above 0; None if they do not fit.

    Far from the beginning it is larger, so that attention has no more than MAX_K_CHUNKS chunks of keys.
    """
    sequences = 1 << (len(chunks) - 1).bit_length()
    at, end = min(chunk.num_cached for chunk in chunks), max(chunk.end for chunk in chunks)
    for rows in _sizes(max_rows):
        each = rows // sequences
        step = chunk_step(each, block)
        start = at // step * step
        near = end <= MAX_K_CHUNKS * step or each == max_rows
        if start > 0 and near and end - start <= each and each >= TILE:
            moved = tuple(replace(chunk, start=start) for chunk in chunks)
            return PrefillBatch(rows, moved, chunked=True, sequences=sequences)
    return None


def _sizes(max_rows: int) -> list[int]:
    """Return the numbers of rows that a batch may have: powers of two from 32 to max_rows."""
    return [TILE << i for i in range((max_rows // TILE).bit_length())]


# ---- device inputs


def prefill_inputs(batch: PrefillBatch, block: int, model_config: TtModelConfig) -> AnyPrefillInputs:
    """Return the batch's inputs as torch values. block: tokens in a block of the cache."""
    return (_chunked_inputs if batch.chunked else _prompt_inputs)(batch, block, model_config)


def _prompt_inputs(batch: PrefillBatch, block: int, model_config: TtModelConfig) -> PrefillInputs:
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
    # The bounds of the prompts' rows and of the padding, then `rows` repeated.
    windows = torch.full((batch.rows // TILE + 1,), batch.rows, dtype=torch.int32)
    windows[: len(starts) + 1] = torch.tensor([*starts, min(at, batch.rows)], dtype=torch.int32)
    tokens, logits_rows = _tokens_and_logits_rows(batch, starts)
    return PrefillInputs(tokens, positions, prefill_key_rows(positions, model_config), table, logits_rows, windows)


def _chunked_inputs(batch: PrefillBatch, block: int, model_config: TtModelConfig) -> ChunkedPrefillInputs:
    sequences, rows_each = batch.sequences, batch.rows // batch.sequences
    start, end = batch.chunks[0].start, max(chunk.end for chunk in batch.chunks)
    positions = torch.zeros(1, rows_each, dtype=torch.int32)
    positions[:, : end - start] = torch.arange(start, end)
    padding = [()] * (sequences - len(batch.chunks))
    written = [_written_blocks(chunk, block) for chunk in batch.chunks]
    fill = [fill_table(own, ceil_div(rows_each, block)) for own in (*written, *padding)]
    width = chunked_table_width(table_width(model_config.max_seq_len, block), rows_each, block)
    read = [chunk.prompt.blocks for chunk in batch.chunks]
    pages = [attention_table(own, width) for own in (*read, *padding)]
    tokens, logits_rows = _tokens_and_logits_rows(batch, range(0, batch.rows, rows_each))
    return ChunkedPrefillInputs(
        tokens,
        positions,
        prefill_key_rows(positions, model_config, sequences),
        torch.stack(fill),
        logits_rows,
        torch.tensor([start], dtype=torch.int32),
        torch.stack(pages),
        torch.arange(sequences, dtype=torch.int32),
    )


def blank_batch(kind: PrefillKind) -> PrefillBatch:
    """Return a batch of a kind that writes nothing."""
    nothing = PrefillChunk(Prompt(0, (), 0, ()), 0, 0, 0)
    return PrefillBatch(kind.rows, (nothing,), kind.chunked, kind.sequences)


def _tokens_and_logits_rows(batch: PrefillBatch, starts: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """[1, 1, 1, rows] and [1, 32] int32. starts: the row where each chunk begins."""
    tokens = torch.zeros(1, 1, 1, batch.rows, dtype=torch.int32)
    logits_rows = torch.zeros(1, MAX_USERS, dtype=torch.int32)
    for chunk, at in zip(batch.chunks, starts):
        end = at + chunk.end - chunk.start
        tokens[..., at:end] = torch.tensor(list(chunk.tokens), dtype=torch.int32)
        logits_rows[:, chunk.prompt.slot] = max(end - 1, 0)
    logits_rows[0, : len(batch.sampled_rows)] = torch.tensor(batch.sampled_rows, dtype=torch.int32)
    return tokens, logits_rows


def _written_blocks(chunk: PrefillChunk, block: int) -> list[int]:
    """Return the cache block that each block of the chunk's rows is written to, or NO_BLOCK."""
    inside = range(chunk.start // block, ceil_div(chunk.end, block))
    return [chunk.prompt.blocks[i] if i * block >= chunk.num_cached else NO_BLOCK for i in inside]

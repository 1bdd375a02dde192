"""Which prompts share a prefill batch, and how: the cheapest grouping found, by modeled time. Pure functions.

A batch reads all weights once, so few batches are fast. Two forms of a batch hold several prompts:

- Whole prompts side by side, each from its first token. Tokens that the cache holds are computed again, and their
  blocks are not written: other sequences may share them.
- Chunks behind cached prefixes, with one start for all, because attention takes one start. Where a prefix is longer
  than the start, the tokens between are computed again, and not written.
"""

from dataclasses import dataclass
from math import inf
from typing import Iterator, NamedTuple, Sequence

from models.demos.qwen25_7b.plans.grids import TILE, ceil_div, padded_rows
from models.demos.qwen25_7b.plans.prefill_plan import q_chunk_size
from models.demos.qwen25_7b.plans.prefill_prices import PrefillPrices, prefill_sizes
from models.demos.qwen25_7b.serving.prefill_batch import (
    PrefillBatch,
    PrefillChunk,
    PrefillKind,
    Prompt,
)


def plan_prefill(
    prompts: Sequence[Prompt], prices: PrefillPrices, block: int
) -> list[PrefillBatch]:
    """Return the batches to launch, in order.

    A batch comes after the batches that write what it reads: the earlier chunks of its prompts, and cached blocks
    that an earlier prompt of the list writes. Apart from that, batches keep the order of their first prompts.
    The modeled time is at most that of one prompt after the other.
    block: tokens in a cache block.
    """
    order = {id(prompt): i for i, prompt in enumerate(prompts)}
    plans = [
        [_pack(wave, prices, block, order) for wave in waves]
        for waves in _waves(prompts, prices.max_rows, block)
    ]
    cheapest = min(plans, key=lambda plan: sum(seconds for seconds, _ in plan))
    return [batch for _, batches in cheapest for batch in batches]


def chunk_start(at: int, rows: int, block: int) -> int:
    """Return the first position of the chunk of `rows` rows that computes position `at`.

    Attention starts at multiples of its chunk size, and the cache is written in whole blocks.
    """
    step = max(block, q_chunk_size(rows))
    return at // step * step


def seconds_of(batch: PrefillBatch, prices: PrefillPrices) -> float:
    """The modeled time of a batch."""
    if batch.chunked:
        return prices.chunked(batch.rows, batch.sequences, batch.chunks[0].start)
    return prices.whole(batch.rows)


def prefill_kinds(max_rows: int, slots: int) -> list[PrefillKind]:
    """Return all kinds of batches that `plan_prefill` gives for up to `slots` prompts, the most frequent first.

    First batches of one prompt or of whole prompts, then the full chunks of long prompts, then batches of several chunks.
    """
    sizes = prefill_sizes(max_rows)
    alone = [PrefillKind(rows, chunked) for rows in sizes for chunked in (False, True)]
    full = [PrefillKind(max_rows, chunked, samples=False) for chunked in (False, True)]
    shares = [1 << i for i in range(1, (slots - 1).bit_length() + 1)]
    several = [
        PrefillKind(rows, True, sequences=n) for rows in sizes for n in shares if rows // n >= TILE
    ]
    return alone + full + several


# ---- prompts that read each other's blocks


@dataclass(frozen=True)
class _Rest:
    """What is left of a prompt from position `at` on, once its full chunks are computed. It fits one batch."""

    prompt: Prompt
    at: int
    full_chunks: tuple[PrefillChunk, ...]
    readable: bool = True  # whether the cache holds the tokens before `at` when the batch runs

    @property
    def end(self) -> int:
        return len(self.prompt.tokens)


def _waves(prompts: Sequence[Prompt], max_rows: int, block: int) -> Iterator[list[list[_Rest]]]:
    """Yield ways to order the prompts: lists of waves. A prompt reads cached blocks of earlier waves only.

    vLLM gives a prompt the blocks of a prompt before it in the same call. The first way computes the second prompt
    later. The second way computes it beside the first one, from its first token.
    """
    for recompute in (False, True):
        waves: list[list[_Rest]] = []
        wave_of_block: dict[int, int] = {}  # of the blocks that prompts of this call write
        for prompt in prompts:
            cached = prompt.num_cached // block
            wave = 1 + max((wave_of_block.get(b, -1) for b in prompt.blocks[:cached]), default=-1)
            rest = _cut(prompt, max_rows, block)
            if recompute and wave > 0 and rest.end <= max_rows:
                rest = _Rest(prompt, rest.at, (), readable=False)
                wave = 0
            wave_of_block |= dict.fromkeys(prompt.blocks[cached:], wave)
            waves += [[] for _ in range(wave + 1 - len(waves))]
            waves[wave].append(rest)
        yield waves
        if len(waves) < 2:
            return


def _cut(prompt: Prompt, max_rows: int, block: int) -> _Rest:
    """Cut full chunks off a prompt, each a batch of max_rows rows."""
    chunks, at, end = [], prompt.num_cached, len(prompt.tokens)
    while _rows_to_end(at, end, max_rows, block) > max_rows:
        start = chunk_start(at, max_rows, block)
        chunks.append(PrefillChunk(prompt, start, at // block * block, start + max_rows))
        at = start + max_rows
    return _Rest(prompt, at, tuple(chunks))


def _rows_to_end(at: int, end: int, max_rows: int, block: int) -> int:
    """Return the rows of the smallest chunk that computes the positions from `at` to `end`, or 2 * max_rows: none does."""
    sizes = prefill_sizes(max_rows)
    fitting = (rows for rows in sizes if end - chunk_start(at, rows, block) <= rows)
    return next(fitting, 2 * max_rows)


# ---- groups of prompts


class _Form(NamedTuple):
    """How a batch computes a group of prompts. sequences: 0 for whole prompts side by side."""

    seconds: float
    rows: int
    start: int
    sequences: int


def _pack(
    rests: Sequence[_Rest], prices: PrefillPrices, block: int, order: dict[int, int]
) -> tuple[float, list[PrefillBatch]]:
    """Return the modeled seconds and the batches of prompts that do not read each other's blocks.

    The prompts are sorted, and the sorted list is cut where it costs least. Uncached prompts keep their order.
    """
    by_start = sorted(rests, key=lambda rest: (rest.at, rest.at and rest.end))
    by_length = sorted(rests, key=lambda rest: rest.at and rest.end - rest.at)
    cuts = [_cheapest_cut(by_start, prices, block)]
    if by_length != by_start:
        cuts.append(_cheapest_cut(by_length, prices, block))
    seconds, groups = min(cuts, key=lambda cut: cut[0])
    in_order = [
        (sorted(group, key=lambda rest: order[id(rest.prompt)]), form) for group, form in groups
    ]
    in_order.sort(key=lambda item: order[id(item[0][0].prompt)])
    batches = []
    for group, form in in_order:
        full = [_full_batch(chunk) for rest in group for chunk in rest.full_chunks]
        seconds += sum(seconds_of(batch, prices) for batch in full)
        batches += [*full, _batch(group, form, block)]
    return seconds, batches


def _cheapest_cut(
    rests: Sequence[_Rest], prices: PrefillPrices, block: int
) -> tuple[float, list[tuple[Sequence[_Rest], _Form]]]:
    """Cut a list of prompts into groups, one batch each, at the least modeled time (dynamic programming)."""
    best = [0.0] + [inf] * len(rests)  # seconds of the prompts before each cut
    last: list[tuple[int, _Form]] = [(0, _Form(0, 0, 0, 0))] * (len(rests) + 1)
    for first in range(len(rests)):
        for count, form in enumerate(_forms(rests[first:], prices, block), 1):
            seconds = best[first] + form.seconds
            if seconds < best[first + count]:
                best[first + count] = seconds
                last[first + count] = first, form
    groups, at = [], len(rests)
    while at:
        first, form = last[at]
        groups.append((rests[first:at], form))
        at = first
    return best[-1], groups


def _forms(rests: Sequence[_Rest], prices: PrefillPrices, block: int) -> Iterator[_Form]:
    """Yield the cheaper form of a batch of the first prompt, of the first two, and so on, while they fit one batch."""
    used, at, end, readable = 0, inf, 0, True
    for count, rest in enumerate(rests, 1):
        tokens = used + rest.end
        used += ceil_div(rest.end, block) * block  # a prompt begins where a block begins
        at, end = min(at, rest.at), max(end, rest.end)
        readable = readable and rest.readable
        forms = []
        if tokens <= prices.max_rows:
            rows = padded_rows(tokens)
            forms.append(_Form(prices.whole(rows), rows, 0, 0))
        if readable and at > 0:
            sequences = 1 << (count - 1).bit_length()
            rows_each = _rows_to_end(at, end, prices.max_rows, block)
            rows, start = sequences * rows_each, chunk_start(at, rows_each, block)
            if start > 0 and rows <= prices.max_rows:
                seconds = prices.chunked(rows, sequences, start)
                forms.append(_Form(seconds, rows, start, sequences))
        if not forms:
            return
        yield min(forms)


def _full_batch(chunk: PrefillChunk) -> PrefillBatch:
    return PrefillBatch(chunk.end - chunk.start, (chunk,), chunked=chunk.start > 0)


def _batch(group: Sequence[_Rest], form: _Form, block: int) -> PrefillBatch:
    chunks = tuple(
        PrefillChunk(rest.prompt, form.start, rest.at // block * block, rest.end) for rest in group
    )
    return PrefillBatch(form.rows, chunks, form.sequences > 0, max(form.sequences, 1))

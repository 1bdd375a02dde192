"""Sequence: a request and its tokens. Scheduler: which sequences a replica runs, in which slots, with which blocks."""

from collections import abc
from typing import Collection, Iterable, Optional

import numpy as np

from models.demos.qwen25_7b.config.sampling import SamplingParams, TokenCounts
from models.demos.qwen25_7b.plans.grids import ceil_div
from models.demos.qwen25_7b.plans.prefill_prices import PrefillPrices
from models.demos.qwen25_7b.serving.block_pool import BlockPool
from models.demos.qwen25_7b.serving.prefill_batch import PrefillBatch, Prompt
from models.demos.qwen25_7b.serving.prefill_packing import plan_prefill
from models.demos.qwen25_7b.serving.sampling import stream_key


class Sequence:
    """A prompt and the tokens that follow it.

    Once the prompt is computed, the cache holds all tokens but the last; the next step writes that one.
    """

    def __init__(
        self,
        user: int,
        prompt: abc.Sequence[int],
        max_new_tokens: int,
        params: SamplingParams,
        stop_ids: Collection[int],
    ):
        self.user = user
        self.tokens = list(prompt)
        self.remaining = max_new_tokens
        self._prompt_length = len(prompt)
        self._ids = np.array(prompt, dtype=np.int32)  # the first of `tokens`, see token_counts
        self._stop_ids = stop_ids
        self.params = params
        self.key = stream_key(params.seed)
        self.slot: Optional[int] = None  # None: waiting
        self.blocks: list[int] = []
        self.prefix_length = 0  # tokens that the cache held at admission
        self.num_cached = 0  # tokens that the cache holds once all launched work is done
        self.new_tokens: list[int] = []  # from the last step or prefill

    @property
    def finished(self) -> bool:
        return self.remaining <= 0

    @property
    def token_counts(self) -> TokenCounts:
        new = np.array(self.tokens[len(self._ids) :], dtype=np.int32)
        self._ids = np.concatenate([self._ids, new])
        return TokenCounts(*np.split(self._ids, [self._prompt_length]))

    def append(self, tokens: list[int]) -> None:
        """Add sampled tokens up to the first stop token, which ends the sequence."""
        end = next((i for i, token in enumerate(tokens, 1) if token in self._stop_ids), None)
        self.new_tokens = tokens[:end]
        self.tokens += self.new_tokens
        self.num_cached = len(self.tokens) - 1
        self.remaining = self.remaining - len(self.new_tokens) if end is None else 0


class Scheduler:
    """Admits sequences to slots, gives them blocks, and preempts one when blocks run short.

    - slots: rows of a decode step.
    - max_sequences: sequences at once; may be fewer than slots.
    - prefill_prices: by which prompts are packed into prefill batches.
    """

    def __init__(
        self, pool: BlockPool, *, slots: int, max_sequences: int, prefill_prices: PrefillPrices
    ):
        self.pool = pool
        self.slots: list[Optional[Sequence]] = [None] * slots
        self.running: list[Sequence] = []  # in the order of their admission
        self._max_sequences = max_sequences
        self._prefill_prices = prefill_prices

    @property
    def has_free_slot(self) -> bool:
        return len(self.running) < self._max_sequences

    def admit(self, sequence: Sequence) -> bool:
        """Give the sequence a slot and blocks; False if there are too few."""
        if not self.has_free_slot or not self._allocate(sequence):
            return False
        sequence.slot = self.slots.index(None)
        self.slots[sequence.slot] = sequence
        self.running.append(sequence)
        return True

    def _allocate(self, sequence: Sequence) -> bool:
        """Give the sequence blocks for all its tokens; False if there are too few.

        Blocks of a known prefix are shared. The last token is never part of the prefix, because its
        logits are needed.
        """
        prefix = self.pool.lookup_prefix(sequence.tokens[:-1])
        self.pool.reference(prefix)
        needed = ceil_div(len(sequence.tokens), self.pool.block) - len(prefix)
        blocks = self.pool.allocate(needed)
        if blocks is None:
            self.pool.free(prefix)
            return False
        sequence.blocks = prefix + blocks
        sequence.prefix_length = len(prefix) * self.pool.block
        sequence.num_cached = sequence.prefix_length
        return True

    def prefill_batches(self, sequences: Iterable[Sequence]) -> list[PrefillBatch]:
        """Return the prefill batches of sequences that were just admitted."""
        prompts = [
            Prompt(sequence.slot, sequence.tokens, sequence.prefix_length, sequence.blocks)
            for sequence in sequences
        ]
        return plan_prefill(prompts, self._prefill_prices, self.pool.block)

    def extend(self, in_flight: int) -> bool:
        """Allocate the blocks that the sequences' next tokens start. False if there are too few.

        in_flight: decode steps launched and not read, each of which writes one token.
        """
        sequences = self._without_block(in_flight)
        blocks = self.pool.allocate(len(sequences))
        if blocks is None:
            return False
        for sequence, block in zip(sequences, blocks):
            sequence.blocks.append(block)
        return True

    def preempt(self) -> Optional[Sequence]:
        """Finish and return the newest sequence if blocks for the next step are missing, else None.

        The caller admits it again later; its tokens are then computed again. No step may be in flight.
        """
        if len(self._without_block(0)) <= self.pool.num_free:
            return None
        newest = self.running[-1]
        self.finish(newest)
        return newest

    def finish(self, sequence: Sequence) -> None:
        """Free the sequence's slot and blocks. The computed part of its tokens becomes a known prefix."""
        self.slots[sequence.slot] = None
        self.running.remove(sequence)
        self.pool.register_prefix(sequence.tokens[: sequence.num_cached], sequence.blocks)
        self.pool.free(sequence.blocks)
        sequence.blocks = []
        sequence.slot = None

    def _without_block(self, in_flight: int) -> list[Sequence]:
        """Return the sequences that have no block for their next token."""
        block = self.pool.block
        return [
            sequence
            for sequence in self.running
            if len(sequence.tokens) - 1 + in_flight >= len(sequence.blocks) * block
        ]

"""Speculative decoding (docs/sampling.md): a step verifies draft tokens of a sequence beside its next token.

Slots without a sequence are lent to sequences that have draft tokens. The i-th slot of a sequence holds the i-th token
from its last one on. It attends to the tokens before it and samples the next one, with the noise of that position. The
tokens therefore equal those of plain steps, in fewer steps.

With one KV head a chip a sequence takes a group of neighboring slots, if there are enough groups. A group stays within
one chunk of keys, because the cores divide the chunks of its last token, and a token alone must be summed in the same
order.
"""

from collections import abc
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Iterator, NamedTuple

from .scheduler import Sequence

NGRAM_LENGTHS = (4, 3, 2)  # the longest first


class NgramProposer:
    """Proposes draft tokens from the last occurrence of each n-gram of a growing sequence."""

    def __init__(self):
        # n-gram -> position after its last occurrence
        self._after: dict[tuple[int, ...], int] = {}
        self._indexed = 0  # n-grams that end before this position are known

    def propose(self, tokens: abc.Sequence[int], count: int) -> list[int]:
        """Return `count` draft tokens to follow `tokens`, or none if their last n-grams are new.

        tokens: the sequence so far; it begins with the tokens of all earlier calls. A copy may overlap its
        source: "2 1 2 1" follows "1 2 1 2 1".
        """
        # The n-grams that a token follows are known; the one at the end is looked up.
        for end in range(self._indexed + 1, len(tokens)):
            for length in NGRAM_LENGTHS:
                if length <= end:
                    self._after[tuple(tokens[end - length : end])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)
        for length in NGRAM_LENGTHS:
            at = self._after.get(tuple(tokens[-length:])) if length <= len(tokens) else None
            if at is not None:
                return list(islice(cycle(tokens[at:]), count))
        return []


class Draft(NamedTuple):
    """The tokens of one sequence in a verify step."""

    sequence: Sequence
    # the sequence's own, then those lent to it; or the first ones of its group
    slots: tuple[int, ...]
    tokens: tuple[int, ...]  # one a slot: the sequence's last token, then draft tokens

    def accept(self, sampled: abc.Sequence[int]) -> list[int]:
        """The sequence's new tokens: one after each accepted draft token, and one more. sampled: of each slot."""
        own = [sampled[slot] for slot in self.slots]
        accepted = 0
        while accepted < len(own) - 1 and self.tokens[accepted + 1] == own[accepted]:
            accepted += 1
        return own[: accepted + 1]


@dataclass(kw_only=True)
class Speculation:
    """Chooses draft tokens and slots for a verify step."""

    slots: int  # of the batch
    max_tokens: int  # of a sequence in a step
    groups: int = 0  # into which the slots are divided; 0 where attention reads no groups
    k_chunk: int = 0  # keys of a chunk
    _proposers: dict[Sequence, NgramProposer] = field(default_factory=dict)

    def propose(self, sequences: abc.Sequence[Sequence]) -> list[Draft]:
        """Return a draft for every sequence, or none if no draft token has a slot.

        None beside penalties: the chips count tokens by slot, and drafts borrow slots.
        """
        if any(sequence.params.penalized and sequence.params.on_device for sequence in sequences):
            return []
        known = self._proposers
        self._proposers = {s: known[s] if s in known else NgramProposer() for s in sequences}
        proposed = [self._draft_tokens(sequence) for sequence in sequences]
        shares = self._groups(sequences) if self.grouped(sequences) else self._lent_slots(sequences, proposed)
        drafts = []
        for sequence, draft_tokens, slots in zip(sequences, proposed, shares):
            tokens = (sequence.tokens[-1], *draft_tokens)[: len(slots)]
            drafts.append(Draft(sequence, tuple(slots[: len(tokens)]), tokens))
        return drafts if any(len(draft.slots) > 1 for draft in drafts) else []

    def grouped(self, sequences: abc.Collection[Sequence]) -> bool:
        """Whether each sequence gets a group of slots."""
        return len(sequences) <= self.groups

    def _groups(self, sequences: abc.Sequence[Sequence]) -> Iterator[range]:
        """Yield the slots of each sequence's group that a chunk of keys has room for."""
        size = self.slots // self.groups
        for first, sequence in zip(range(0, self.slots, size), sequences):
            position = len(sequence.tokens) - 1
            yield range(first, first + min(size, self.k_chunk - position % self.k_chunk))

    def _lent_slots(self, sequences: abc.Sequence[Sequence], proposed: list[list[int]]) -> Iterator[list[int]]:
        """Yield each sequence's own slot, with an equal share of the inactive ones where it has draft tokens."""
        own = {sequence.slot for sequence in sequences}
        inactive = [slot for slot in range(self.slots) if slot not in own]
        share = len(inactive) // max(1, sum(map(bool, proposed)))
        for sequence, tokens in zip(sequences, proposed):
            yield [sequence.slot, *(inactive.pop(0) for _ in tokens[:share])]

    def _draft_tokens(self, sequence: Sequence) -> list[int]:
        """None beyond the sequence's end, or where the host samples."""
        if not sequence.params.on_device:
            return []
        count = min(self.max_tokens, sequence.remaining) - 1
        return self._proposers[sequence].propose(sequence.tokens, count)

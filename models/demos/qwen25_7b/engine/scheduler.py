"""Which sequences a replica runs, in which slots, with which blocks of the cache."""

from collections import OrderedDict, abc
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import takewhile
from typing import Collection, Iterator, Optional

import numpy as np

from ..config.sampling import SamplingParams
from ..plans.grids import ceil_div
from .prefill_batch import WEIGHTS, Prompt
from .sampling import NextToken, TokenCounts, stream_key


@dataclass(eq=False)
class Sequence:
    """A prompt and its answer. The cache holds all computed tokens but the last, which the next step writes."""

    user: int
    prompt: abc.Sequence[int]
    remaining: int  # tokens to sample, at most
    params: SamplingParams
    stop_ids: Collection[int]
    slot: Optional[int] = None  # None: waiting
    blocks: list[int] = field(default_factory=list)
    num_cached: int = 0  # tokens that the cache holds once all launched work is done
    new_tokens: list[int] = field(default_factory=list)  # from the last step or prefill

    def __post_init__(self):
        self.tokens = list(self.prompt)
        self.key = stream_key(self.params.seed)

    @property
    def finished(self) -> bool:
        return self.remaining <= 0

    def to_prefill(self) -> Prompt:
        return Prompt(self.slot, self.tokens, self.num_cached, self.blocks)

    def next_token(self, slot: int, position: int, *, counted: bool) -> NextToken:
        """A token to sample. counted: with the tokens so far, if it has penalties."""
        counts = TokenCounts()
        if counted and self.params.penalized:
            ids = np.array(self.tokens, dtype=np.int32)
            counts = TokenCounts(ids[: len(self.prompt)], ids[len(self.prompt) :])
        return NextToken(slot, self.params, self.key, position, counts)

    def append(self, tokens: list[int]) -> None:
        """Add sampled tokens up to the first stop token, which ends the sequence."""
        end = next((i for i, token in enumerate(tokens, 1) if token in self.stop_ids), None)
        self.new_tokens = tokens[:end]
        self.tokens += self.new_tokens
        self.num_cached = len(self.tokens) - 1
        self.remaining = self.remaining - len(self.new_tokens) if end is None else 0


class BlockPool:
    """Allocates, shares and frees the blocks of a cache.

    A free block keeps its contents until it is allocated again, so a later sequence with this prefix can
    use it. The block that was freed first is allocated first.

    A full block is known by the SHA-256 of all tokens up to its end.
    """

    def __init__(self, blocks: int, block: int):
        """block: tokens in a block."""
        self.block = block
        self.ref_counts = [0] * blocks  # sequences that use each block
        self._free = OrderedDict.fromkeys(range(blocks))  # in the order of allocation
        self._blocks: dict[bytes, int] = {}  # digest of a prefix -> the block that ends it
        self._digests: dict[int, bytes] = {}  # the inverse

    @property
    def num_free(self) -> int:
        return len(self._free)

    def lookup_prefix(self, tokens: abc.Sequence[int]) -> list[int]:
        """Return the blocks of the longest known prefix of `tokens`, in whole blocks."""
        known = takewhile(self._blocks.__contains__, self._prefixes(tokens))
        return [self._blocks[digest] for digest in known]

    def reference(self, blocks: abc.Sequence[int]) -> None:
        """Add one user to each of the blocks that `lookup_prefix` returned."""
        for block in blocks:
            if not self.ref_counts[block]:
                del self._free[block]
            self.ref_counts[block] += 1

    def allocate(self, number: int) -> list[int]:
        """Return `number` blocks to write. So many must be free."""
        blocks = [self._free.popitem(last=False)[0] for _ in range(number)]
        for block in blocks:
            self.forget(block)
            self.ref_counts[block] = 1
        return blocks

    def register_prefix(self, tokens: abc.Sequence[int], blocks: abc.Sequence[int]) -> None:
        """Make the full blocks of a sequence known. tokens: from its beginning, held by `blocks`.

        A prefix that is known already keeps its block.
        """
        for digest, block in zip(self._prefixes(tokens), blocks):
            if digest not in self._blocks:
                self.forget(block)  # it may be known by earlier contents
                self._blocks[digest] = block
                self._digests[block] = digest

    def free(self, blocks: abc.Sequence[int]) -> None:
        """Remove one user from each block. The last is allocated again first: earlier ones are likelier prefixes."""
        for block in reversed(blocks):
            assert self.ref_counts[block] > 0, f"block {block} is free"
            self.ref_counts[block] -= 1
            if not self.ref_counts[block]:
                self._free[block] = None

    def forget(self, block: int) -> None:
        """Make the block known by no prefix."""
        digest = self._digests.pop(block, None)
        if digest is not None:
            del self._blocks[digest]

    def _prefixes(self, tokens: abc.Sequence[int]) -> Iterator[bytes]:
        """Yield the digest of each prefix in whole blocks, the shortest first."""
        digest = sha256()
        for start in range(0, len(tokens) - self.block + 1, self.block):
            digest.update(np.array(tokens[start : start + self.block], dtype=np.int64).tobytes())
            yield digest.digest()


class Scheduler:
    """Gives sequences slots and blocks. The pool has blocks for max_sequences whole contexts.

    A sequence gets blocks for all its tokens at once, so none runs short later.

    - slots: rows of a decode step.
    - max_sequences: sequences at once; may be fewer than slots.
    """

    def __init__(self, pool: BlockPool, *, slots: int, max_sequences: int):
        self.pool = pool
        self.slots: list[Optional[Sequence]] = [None] * slots
        self.running: list[Sequence] = []  # in the order of their admission
        # Full blocks of prompts whose prefill was not launched yet.
        self._unwritten: set[int] = set()
        self._max_sequences = max_sequences

    @property
    def has_free_slot(self) -> bool:
        return len(self.running) < self._max_sequences

    def admit(self, sequence: Sequence) -> None:
        """Give the sequence a free slot, and blocks for its prompt and its longest answer.

        Blocks of a known prefix are shared. The last token is never part of the prefix, because its logits are needed.
        """
        prefix = self.pool.lookup_prefix(sequence.tokens[:-1])
        written = [block for block in prefix if block not in self._unwritten]
        # A sequence that reads what another writes now is in a later batch, which reads all weights once more.
        if (len(prefix) - len(written)) * self.pool.block < WEIGHTS:
            prefix = written
        self.pool.reference(prefix)
        needed = ceil_div(len(sequence.tokens) + sequence.remaining, self.pool.block)
        sequence.blocks = prefix + self.pool.allocate(needed - len(prefix))
        self.pool.register_prefix(sequence.tokens, sequence.blocks)
        self._unwritten.difference_update(sequence.blocks[len(prefix) :])
        full = len(sequence.tokens) // self.pool.block
        self._unwritten.update(sequence.blocks[len(prefix) : full])
        sequence.num_cached = len(prefix) * self.pool.block
        sequence.slot = self.slots.index(None)
        self.slots[sequence.slot] = sequence
        self.running.append(sequence)

    def launched(self, sequence: Sequence, end: int) -> None:
        """The prefill of the sequence's tokens before position `end` was launched."""
        sequence.num_cached = end
        self._unwritten.difference_update(sequence.blocks[: end // self.pool.block])

    def finish(self, sequence: Sequence) -> None:
        """Free the sequence's slot and blocks. The computed part of its tokens becomes a known prefix."""
        self.slots[sequence.slot] = None
        self.running.remove(sequence)
        # A call that is closed early leaves prompts without a prefill, and prompts that share their blocks.
        unwritten = [i for i, block in enumerate(sequence.blocks) if block in self._unwritten]
        for i in unwritten:
            self.pool.forget(sequence.blocks[i])
        computed = min([sequence.num_cached, *(i * self.pool.block for i in unwritten)])
        self.pool.register_prefix(sequence.tokens[:computed], sequence.blocks)
        self.pool.free(sequence.blocks)
        sequence.blocks = []
        sequence.slot = None

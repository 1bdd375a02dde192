"""Which sequences use which blocks of a cache, and which blocks hold a known prefix."""

from collections import OrderedDict
from itertools import count
from typing import Optional, Sequence


class BlockPool:
    """Allocates, shares and frees the blocks of a cache.

    A free block keeps its contents until it is allocated again, so a later sequence with this prefix can
    use it. The block that was freed first is allocated first.

    A prefix match is exact: a full block is known by its tokens and by the known block before it.
    """

    def __init__(self, blocks: int, block: int):
        """block: tokens in a block."""
        self.block = block
        self._ref_counts = [0] * blocks
        self._free = OrderedDict.fromkeys(range(blocks))  # in the order of allocation
        self._by_key: dict[tuple, int] = {}  # (id of the prefix before it, its tokens) -> block
        self._keys: dict[int, tuple] = {}  # block -> its key in _by_key
        self._prefix_ids: dict[int, int] = {}  # block -> id of the prefix that ends with it
        self._new_ids = count(1)  # never repeated; 0 is the empty prefix

    @property
    def num_free(self) -> int:
        return len(self._free)

    def ref_count(self, block: int) -> int:
        """Return the number of sequences that use the block."""
        return self._ref_counts[block]

    def lookup_prefix(self, tokens: Sequence[int]) -> list[int]:
        """Return the blocks of the longest known prefix of `tokens`, in whole blocks."""
        found: list[int] = []
        prefix = 0
        for start in range(0, len(tokens) - self.block + 1, self.block):
            block = self._by_key.get((prefix, tuple(tokens[start : start + self.block])))
            if block is None:
                break
            found.append(block)
            prefix = self._prefix_ids[block]
        return found

    def reference(self, blocks: Sequence[int]) -> None:
        """Add one user to each of the blocks that `lookup_prefix` returned."""
        for block in blocks:
            if not self._ref_counts[block]:
                del self._free[block]
            self._ref_counts[block] += 1

    def allocate(self, number: int) -> Optional[list[int]]:
        """Return `number` blocks to write, or None if fewer are free."""
        if number > self.num_free:
            return None
        blocks = [self._free.popitem(last=False)[0] for _ in range(number)]
        for block in blocks:
            self._forget(block)
            self._ref_counts[block] = 1
        return blocks

    def register_prefix(self, tokens: Sequence[int], blocks: Sequence[int]) -> None:
        """Make the full blocks of a sequence known. tokens: from its beginning, held by `blocks`.

        A prefix that is known already keeps its block; the blocks behind it become known too.
        """
        prefix = 0
        for start, block in zip(range(0, len(tokens) - self.block + 1, self.block), blocks):
            key = prefix, tuple(tokens[start : start + self.block])
            known = self._by_key.get(key)
            if known is None:
                self._forget(block)  # it may be known by earlier contents
                self._by_key[key] = block
                self._keys[block] = key
                self._prefix_ids[block] = next(self._new_ids)
                known = block
            prefix = self._prefix_ids[known]

    def free(self, blocks: Sequence[int]) -> None:
        """Remove one user from each block; the last block is allocated again first.

        A block near the beginning is more likely to be part of the next sequence's prefix.
        """
        for block in reversed(blocks):
            assert self._ref_counts[block] > 0, f"block {block} is free"
            self._ref_counts[block] -= 1
            if not self._ref_counts[block]:
                self._free[block] = None

    def _forget(self, block: int) -> None:
        key = self._keys.pop(block, None)
        if key is not None:
            del self._by_key[key], self._prefix_ids[block]

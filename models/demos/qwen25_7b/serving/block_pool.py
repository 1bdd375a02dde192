"""Who holds which block of a cache, and which blocks hold the beginning of a text that is asked for again."""

from collections import OrderedDict
from itertools import count
from typing import Optional, Sequence


class BlockPool:
    """Blocks are given out, shared and taken back. A block that nobody holds keeps what it has until it is given out again,
    so that the next text with the same beginning finds it; the one that was given back first goes first.

    Known beginnings are exact: a full block is known by its tokens and by the known block before it.
    """

    def __init__(self, blocks: int, block: int):
        """block: tokens in a block."""
        self.block = block
        self._holders = [0] * blocks
        self._idle = OrderedDict.fromkeys(range(blocks))  # nobody holds them, the next to be given out first
        self._known: dict[tuple, int] = {}  # (name of the beginning before it, its tokens) -> block
        self._keys: dict[int, tuple] = {}  # block -> its key in _known
        self._names: dict[int, int] = {}  # block -> name of the beginning that ends with it
        self._fresh = count(1)  # names are never given twice; 0: nothing before it

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._idle)

    def holders(self, block: int) -> int:
        return self._holders[block]

    def find(self, tokens: Sequence[int]) -> list[int]:
        """The blocks that hold the longest known beginning of a text, whole blocks of it."""
        found, name = [], 0
        for start in range(0, len(tokens) - self.block + 1, self.block):
            block = self._known.get((name, tuple(tokens[start : start + self.block])))
            if block is None:
                break
            found.append(block)
            name = self._names[block]
        return found

    def hold(self, blocks: Sequence[int]) -> None:
        """One more text holds these blocks, which find() named."""
        for block in blocks:
            if not self._holders[block]:
                del self._idle[block]
            self._holders[block] += 1

    def take(self, number: int) -> Optional[list[int]]:
        """`number` blocks for one text, to be written anew; None if there are not as many."""
        if number > self.free:
            return None
        taken = [self._idle.popitem(last=False)[0] for _ in range(number)]
        for block in taken:
            self._forget(block)
            self._holders[block] = 1
        return taken

    def learn(self, tokens: Sequence[int], blocks: Sequence[int]) -> None:
        """`blocks` hold `tokens`, a text from its beginning: the full ones can be found from now on.

        A beginning that is known already stays where it is; what follows it is known all the same.
        """
        name = 0
        for start, block in zip(range(0, len(tokens) - self.block + 1, self.block), blocks):
            key = name, tuple(tokens[start : start + self.block])
            known = self._known.get(key)
            if known is None:
                self._forget(block)  # it may have been known as something else
                self._known[key], self._keys[block], self._names[block] = block, key, next(self._fresh)
                known = block
            name = self._names[known]

    def release(self, blocks: Sequence[int]) -> None:
        """A text lets go of its blocks; the last of them goes first when blocks are short: beginnings are worth more."""
        for block in reversed(blocks):
            assert self._holders[block] > 0, f"block {block} is nobody's"
            self._holders[block] -= 1
            if not self._holders[block]:
                self._idle[block] = None

    def _forget(self, block: int) -> None:
        key = self._keys.pop(block, None)
        if key is not None:
            del self._known[key], self._names[block]

"""Blocks belong to those who hold them: none twice, none lost, and what is found is what was learnt."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from models.demos.qwen25_7b.serving.block_pool import BlockPool

BLOCKS, BLOCK = 12, 4
few_tokens = st.lists(st.integers(0, 1), min_size=1, max_size=5 * BLOCK)  # so that texts share beginnings


class Texts(RuleBasedStateMachine):
    """Texts that come, grow, share beginnings and go, beside a record of what was written where."""

    held = Bundle("held")  # (tokens, blocks)

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(BLOCKS, BLOCK)
        self.written: dict[int, tuple] = {}  # block -> the text up to its end
        self.holders: list[list[int]] = []

    def write(self, tokens, blocks) -> None:
        for i in range(len(tokens) // BLOCK):
            self.written[blocks[i]] = tuple(tokens[: (i + 1) * BLOCK])

    @rule(target=held, tokens=few_tokens)
    def come(self, tokens):
        known = self.pool.find(tokens[:-1])
        for i, block in enumerate(known):
            assert self.written[block] == tuple(tokens[: (i + 1) * BLOCK]), "it holds something else by now"
        self.pool.hold(known)
        own = self.pool.take(-(-len(tokens) // BLOCK) - len(known))
        if own is None:
            self.pool.release(known)
            return multiple()
        for block in own:
            self.written.pop(block, None)
        blocks = known + own
        self.write(tokens, blocks)
        self.holders.append(blocks)
        self.pool.learn(tokens, blocks)
        return (tokens, blocks)

    @rule(target=held, text=consumes(held), more=few_tokens)
    def grow(self, text, more):
        tokens, blocks = text
        whole = tokens + more
        needed = max(0, -(-len(whole) // BLOCK) - len(blocks))
        own = self.pool.take(needed)
        if own is None:
            return text
        for block in own:
            self.written.pop(block, None)
        self.holders.remove(blocks)
        blocks = blocks + own
        self.holders.append(blocks)
        self.write(whole, blocks)
        return (whole, blocks)

    @rule(text=consumes(held), learnt=st.booleans())
    def go(self, text, learnt):
        tokens, blocks = text
        if learnt:
            self.pool.learn(tokens, blocks)
        self.pool.release(blocks)
        self.holders.remove(blocks)

    @invariant()
    def none_is_lost_and_none_is_given_twice(self):
        counts = [sum(block in blocks for blocks in self.holders) for block in range(BLOCKS)]
        assert [self.pool.holders(block) for block in range(BLOCKS)] == counts
        assert self.pool.free == counts.count(0)


TestTexts = Texts.TestCase
TestTexts.settings = settings(max_examples=200, stateful_step_count=30, deadline=None, derandomize=True)


def test_what_was_given_back_first_goes_first_and_beginnings_last():
    pool = BlockPool(4, BLOCK)
    text = list(range(10))
    blocks = pool.take(3)
    pool.learn(text, blocks)
    pool.release(blocks)
    assert pool.find(text) == blocks[:2]
    (unused,) = pool.take(1)
    assert unused not in blocks
    assert pool.take(1) == [blocks[2]], "the end of the text goes before its beginning"
    assert pool.find(text) == blocks[:2]
    assert pool.take(1) == [blocks[1]] and pool.find(text) == blocks[:1]


def test_no_more_is_given_than_there_is():
    pool = BlockPool(4, BLOCK)
    assert pool.take(5) is None and pool.free == 4
    assert sorted(pool.take(4)) == [0, 1, 2, 3] and pool.take(1) is None

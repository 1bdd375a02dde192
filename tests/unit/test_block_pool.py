"""BlockPool allocates no block twice and loses none. A found prefix holds the registered tokens."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from models.demos.qwen25_7b.serving.scheduler import BlockPool

BLOCKS, BLOCK = 12, 4
few_tokens = st.lists(
    st.integers(0, 1), min_size=1, max_size=5 * BLOCK
)  # two token values, so that sequences share prefixes


class Sequences(RuleBasedStateMachine):
    """Sequences are admitted, grow, share prefixes and finish. A record keeps the tokens of each block."""

    running = Bundle("running")  # (tokens, blocks)

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(BLOCKS, BLOCK)
        self.written: dict[int, tuple] = {}  # block -> the sequence's tokens up to the block's end
        self.holders: list[list[int]] = []

    def write(self, tokens, blocks) -> None:
        for i in range(len(tokens) // BLOCK):
            self.written[blocks[i]] = tuple(tokens[: (i + 1) * BLOCK])

    @rule(target=running, tokens=few_tokens)
    def admit(self, tokens):
        known = self.pool.lookup_prefix(tokens[:-1])
        for i, block in enumerate(known):
            assert self.written[block] == tuple(tokens[: (i + 1) * BLOCK]), (
                "it holds something else by now"
            )
        self.pool.reference(known)
        own = self.pool.allocate(-(-len(tokens) // BLOCK) - len(known))
        if own is None:
            self.pool.free(known)
            return multiple()
        for block in own:
            self.written.pop(block, None)
        blocks = known + own
        self.write(tokens, blocks)
        self.holders.append(blocks)
        self.pool.register_prefix(tokens, blocks)
        return (tokens, blocks)

    @rule(target=running, sequence=consumes(running), more=few_tokens)
    def grow(self, sequence, more):
        tokens, blocks = sequence
        whole = tokens + more
        needed = max(0, -(-len(whole) // BLOCK) - len(blocks))
        own = self.pool.allocate(needed)
        if own is None:
            return sequence
        for block in own:
            self.written.pop(block, None)
        self.holders.remove(blocks)
        blocks = blocks + own
        self.holders.append(blocks)
        self.write(whole, blocks)
        return (whole, blocks)

    @rule(sequence=consumes(running), register=st.booleans())
    def finish(self, sequence, register):
        tokens, blocks = sequence
        if register:
            self.pool.register_prefix(tokens, blocks)
        self.pool.free(blocks)
        self.holders.remove(blocks)

    @invariant()
    def each_block_is_free_or_counted(self):
        counts = [sum(block in blocks for blocks in self.holders) for block in range(BLOCKS)]
        assert [self.pool.ref_count(block) for block in range(BLOCKS)] == counts
        assert self.pool.num_free == counts.count(0)


TestSequences = Sequences.TestCase
TestSequences.settings = settings(
    max_examples=200, stateful_step_count=30, deadline=None, derandomize=True
)


def test_blocks_are_reused_oldest_first_and_prefixes_last():
    pool = BlockPool(4, BLOCK)
    sequence = list(range(10))
    blocks = pool.allocate(3)
    pool.register_prefix(sequence, blocks)
    pool.free(blocks)
    assert pool.lookup_prefix(sequence) == blocks[:2]
    (unused,) = pool.allocate(1)
    assert unused not in blocks
    assert pool.allocate(1) == [blocks[2]], "the end of a sequence is reused before its beginning"
    assert pool.lookup_prefix(sequence) == blocks[:2]
    assert pool.allocate(1) == [blocks[1]] and pool.lookup_prefix(sequence) == blocks[:1]

"""BlockPool allocates no block twice and loses none. A found prefix holds the registered tokens."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from models.demos.qwen25_7b.engine.scheduler import BlockPool

BLOCKS, BLOCK = 12, 4
# Two token values, so that sequences share prefixes.
few_tokens = st.lists(st.integers(0, 1), min_size=1, max_size=5 * BLOCK)


class Sequences(RuleBasedStateMachine):
    """Sequences are admitted, answer, share prefixes and finish. A record keeps the tokens of each block."""

    running = Bundle("running")  # (prompt, answer, blocks)

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(BLOCKS, BLOCK)
        self.written: dict[int, tuple] = {}  # block -> the sequence's tokens up to the block's end
        self.holders: list[list[int]] = []

    def write(self, tokens, blocks) -> None:
        for i in range(len(tokens) // BLOCK):
            self.written[blocks[i]] = tuple(tokens[: (i + 1) * BLOCK])

    @rule(target=running, tokens=few_tokens, answer=few_tokens)
    def admit(self, tokens, answer):
        known = self.pool.lookup_prefix(tokens[:-1])
        for i, block in enumerate(known):
            assert self.written[block] == tuple(tokens[: (i + 1) * BLOCK]), "it holds something else by now"
        self.pool.reference(known)
        needed = -(-len(tokens + answer) // BLOCK) - len(known)
        if needed > self.pool.num_free:
            self.pool.free(known)
            return multiple()
        own = self.pool.allocate(needed)
        for block in own:
            self.written.pop(block, None)
        blocks = known + own
        self.write(tokens, blocks)
        self.holders.append(blocks)
        self.pool.register_prefix(tokens, blocks)
        return (tokens, answer, blocks)

    @rule(sequence=consumes(running), register=st.booleans())
    def finish(self, sequence, register):
        tokens, answer, blocks = sequence
        if register:
            self.write(tokens + answer, blocks)
            self.pool.register_prefix(tokens + answer, blocks)
        self.pool.free(blocks)
        self.holders.remove(blocks)

    @invariant()
    def each_block_is_free_or_counted(self):
        counts = [sum(block in blocks for blocks in self.holders) for block in range(BLOCKS)]
        assert self.pool.ref_counts == counts
        assert self.pool.num_free == counts.count(0)


TestSequences = Sequences.TestCase
TestSequences.settings = settings(max_examples=200, stateful_step_count=30, deadline=None, derandomize=True)


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

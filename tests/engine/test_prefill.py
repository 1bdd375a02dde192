"""Logits and cache of a sequence do not depend on how it is prefilled.

Ways: one prefill batch, chunks cut anywhere, beside other prompts, token by token.
A sequence's blocks are scattered over the cache, with blocks of other sequences between them.
"""

import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from qwen25_7b_lab.evaluation.teacher_forcing import prefill_logits

from models.demos.qwen25_7b.engine.prefill_batch import PrefillBatch, PrefillChunk, Prompt, pack_prompts
from models.demos.qwen25_7b.plans.blocks import INACTIVE, attention_table
from tests.caches import read_caches
from tests.generation import training_chats
from tests.metrics import assert_close, assert_equal

USERS, CONTEXT, TOKENS, STEPS = 4, 640, 500, 36
# Attention takes its keys in chunks, and each chunk rounds the running result to bfloat16.
# Prefill of whole prompts takes 32 or 128 rows of the prefill batch at a time, across prompts.
# Chunked prefill with a cached prefix takes 512 tokens of the sequence at a time, a step 128.
# Four layers carry the rounding on. Measured on the golden mesh: 0.99986 and more.
PCC = 0.9997


@pytest.fixture(scope="module")
def replica(replica_of):
    return replica_of(USERS, CONTEXT, traced=False)


@pytest.fixture(scope="module")
def token_ids(tokenizer):
    """Chats from the checkpoint's training data."""
    return tokenizer.hf.encode(training_chats(1))[:TOKENS]


@pytest.fixture(scope="module")
def whole(replica, token_ids):
    """(logits, cache) of the whole sequence, in one prefill batch."""
    blocks = scattered(replica, TOKENS)
    (batch,) = batches_of(replica, [Prompt(0, token_ids, 0, blocks)])
    return prefill_logits(replica, batch)[0], rows_of(replica, blocks, TOKENS)


def scattered(replica, tokens: int, seed: int = 0) -> list[int]:
    """Return blocks for a sequence: odd blocks of the cache in random order."""
    free = list(range(1, replica.blocks, 2))
    random.Random(seed).shuffle(free)
    return free[: -(-tokens // replica.block)]


def batches_of(replica, prompts) -> list[PrefillBatch]:
    return pack_prompts(prompts, replica.model.max_prefill_rows, replica.block)


def caches(replica) -> torch.Tensor:
    """[keys and values of each layer, blocks, tokens of a block, channels]"""
    return read_caches(replica).transpose(2, 3).flatten(3)


def rows_of(replica, blocks, tokens: int) -> torch.Tensor:
    """[keys and values of each layer, tokens, channels] of a sequence."""
    return caches(replica)[:, blocks].flatten(1, 2)[:, :tokens]


def assert_same_text(logits, rows, expected_logits, expected_rows) -> None:
    """Compare logits and cache rows. The first layer's rows are equal bit for bit."""
    assert_equal(rows[:2], expected_rows[:2])
    for of_layer, expected in zip(rows[2:].float(), expected_rows[2:].float()):
        assert_close(of_layer, expected, pcc=PCC)
    assert_close(logits.float(), expected_logits.float(), pcc=PCC)


@settings(
    max_examples=2,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(cuts=st.sets(st.integers(1, TOKENS - 1), min_size=1, max_size=3))
@example(cuts={32, 33, 127, 128, 129})  # at and beside the borders of blocks and chunks
@example(cuts={TOKENS - 1})  # the last token alone: its block's beginning is computed again, and not written
def test_answers_do_not_depend_on_prefill_chunks(replica, token_ids, whole, cuts):
    blocks, start = scattered(replica, TOKENS, seed=len(cuts)), 0
    for end in (*sorted(cuts), TOKENS):
        for batch in batches_of(replica, [Prompt(2, token_ids[:end], start, blocks)]):
            logits = prefill_logits(replica, batch)[2]
        start = end
    assert_same_text(logits, rows_of(replica, blocks, TOKENS), *whole)


def test_prefill_batches_write_only_their_sequences_blocks(replica, token_ids):
    blocks = scattered(replica, 200, seed=5)
    others = sorted(set(range(replica.blocks)) - set(blocks))
    before = caches(replica)
    for start, end in ((0, 170), (170, 200)):
        for batch in batches_of(replica, [Prompt(1, token_ids[::-1][:end], start, blocks)]):
            replica.prefill(batch)
            replica.read_tokens()
    after = caches(replica)
    assert_equal(after[:, others], before[:, others])
    assert not torch.equal(after[:, blocks], before[:, blocks])


@pytest.mark.parametrize("cut", [False, True])
def test_prompts_in_one_batch_equal_prompts_alone(replica, token_ids, cut):
    """cut: the batch has four prompts' ends, after a batch that their beginnings fill."""
    lengths = (replica.model.max_prefill_rows // 4 + 8,) * 4 if cut else (31, 128, 33, 1)
    each = -(-max(lengths) // replica.block)
    blocks = scattered(replica, 4 * each * replica.block, seed=3)
    own = [blocks[each * i : each * (i + 1)] for i in range(4)]
    prompts = [Prompt(i, token_ids[50 * i :][:n], 0, own[i]) for i, n in enumerate(lengths)]
    *beginnings, together = batches_of(replica, prompts)
    assert len(beginnings) == cut
    for batch in beginnings:
        replica.prefill(batch)
    logits = prefill_logits(replica, together)
    rows = [rows_of(replica, own[i], n) for i, n in enumerate(lengths)]
    for i, prompt in enumerate(prompts):
        (alone,) = batches_of(replica, [prompt])
        of_one = prefill_logits(replica, alone)[i]
        assert_same_text(logits[i], rows[i], of_one, rows_of(replica, own[i], lengths[i]))


@dataclass
class Hits:
    """Prompts with prefixes in the cache, and what each gives in a batch of its own."""

    prompts: list[Prompt]
    logits: list[torch.Tensor]
    rows: list[torch.Tensor]  # of the cache, after the prefix
    cache: torch.Tensor  # with the prefixes alone
    own: list[int]  # blocks after the prefixes

    def assert_same(self, replica, batch: PrefillBatch) -> None:
        """Run a batch of all prompts. Blocks that no prompt owns alone are equal bit for bit."""
        clear(replica, self.own)
        logits = prefill_logits(replica, batch)
        after = caches(replica)
        others = sorted(set(range(replica.blocks)) - set(self.own))
        assert_equal(after[:, others], self.cache[:, others])
        for prompt, expected, rows in zip(self.prompts, self.logits, self.rows):
            own = after[:, prompt.blocks].flatten(1, 2)
            own = own[:, prompt.num_cached : len(prompt.tokens)]
            assert_same_text(logits[prompt.slot], own, expected, rows)


@pytest.fixture(scope="module")
def hits(replica, token_ids) -> Hits:
    """Three prompts. Two share the blocks of a prefix of 64 tokens. The third has 96 cached tokens."""
    blocks = scattered(replica, 20 * 32, seed=11)
    shared, longer = token_ids[:64], token_ids[100:196]
    prompts = [
        Prompt(2, shared + token_ids[200:240], 64, blocks[:2] + blocks[2:4]),
        Prompt(0, shared + token_ids[300:301], 64, blocks[:2] + blocks[4:5]),
        Prompt(3, longer + token_ids[400:420], 96, blocks[5:8] + blocks[8:9]),
    ]
    for prefix in (prompts[0], prompts[2]):
        cached = prefix.num_cached
        (batch,) = batches_of(replica, [Prompt(1, prefix.tokens[:cached], 0, prefix.blocks)])
        replica.prefill(batch)
        replica.read_tokens()
    cache, logits, rows = caches(replica), [], []
    for prompt in prompts:
        (batch,) = batches_of(replica, [prompt])
        logits.append(prefill_logits(replica, batch)[prompt.slot])
        rows.append(rows_of(replica, prompt.blocks, len(prompt.tokens))[:, prompt.num_cached :])
    own = [*blocks[2:5], blocks[8]]
    return Hits(prompts, logits, rows, cache, own)


def clear(replica, blocks) -> None:
    """Fill these blocks with the tokens of another sequence."""
    tokens = [7] * (len(blocks) * replica.block)
    (batch,) = batches_of(replica, [Prompt(1, tokens, 0, blocks)])
    replica.prefill(batch)
    replica.read_tokens()


def test_chunks_with_one_start_in_one_batch_equal_prompts_alone(replica, hits):
    """The third prompt's cached tokens from 64 to 95 are computed again, and not written."""
    chunks = [PrefillChunk(p, 64, p.num_cached, len(p.tokens)) for p in hits.prompts]
    hits.assert_same(replica, PrefillBatch(256, tuple(chunks), chunked=True, sequences=4))


def test_cached_prompts_computed_from_their_first_tokens_equal_prompts_alone(replica, hits):
    chunks = [PrefillChunk(p, 0, p.num_cached, len(p.tokens)) for p in hits.prompts]
    hits.assert_same(replica, PrefillBatch(512, tuple(chunks), chunked=False))


def test_the_planned_batch_of_cached_prompts_equals_prompts_alone(replica, hits):
    (batch,) = batches_of(replica, hits.prompts)
    hits.assert_same(replica, batch)


@pytest.mark.parametrize("prefilled", [1, 31, 33])
def test_prefill_then_steps_equal_steps_alone(replica, token_ids, stepped, prefilled):
    blocks = scattered(replica, len(stepped), seed=9)
    (batch,) = batches_of(replica, [Prompt(1, token_ids[:prefilled], 0, blocks)])
    logits = {prefilled - 1: prefill_logits(replica, batch)[1]}
    for at in range(prefilled, len(stepped)):
        logits[at] = step(replica, 1, token_ids[at], at, blocks)
    for at, of_row in logits.items():
        assert_close(of_row.float(), stepped[at].float(), pcc=PCC)


@pytest.fixture(scope="module")
def stepped(replica, token_ids):
    """Logits after each of the first STEPS tokens, computed in decode steps."""
    blocks = scattered(replica, STEPS, seed=8)
    return [step(replica, 3, token_ids[at], at, blocks) for at in range(STEPS)]


def step(replica, row: int, token: int, at: int, blocks) -> torch.Tensor:
    """Run a decode step with one active slot. Return its logits [vocab_size]."""
    tokens, positions = [0] * USERS, [INACTIVE] * USERS
    tokens[row], positions[row] = token, at
    tables = [attention_table(blocks if user == row else [], replica.width) for user in range(USERS)]
    replica.inputs.write_slots(tokens, positions, torch.stack(tables))
    replica.launch_decode()
    replica.read_tokens()
    return replica.read_logits()[row]

"""Logits and cache of a sequence do not depend on how it is prefilled: beside one prefill of the whole.

A sequence's blocks are scattered over the cache, with blocks of other sequences between them.
"""

import random

import pytest
import torch
from qwen25_7b_lab.evaluation.teacher_forcing import prefill_logits

from models.demos.qwen25_7b.engine.prefill_batch import PrefillBatch, PrefillChunk, Prompt, pack_prompts
from tests.caches import read_caches
from tests.generation import training_chats
from tests.metrics import assert_close, assert_equal

USERS, CONTEXT, TOKENS = 4, 640, 500
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


class Filled:
    """What a prompt left: logits, and [keys and values of each layer, its tokens, channels]."""

    def __init__(self, replica, prompt: Prompt, logits: torch.Tensor):
        self.logits = logits[prompt.slot].float()
        rows = caches(replica)[:, prompt.blocks].flatten(1, 2)
        self.rows = rows[:, prompt.num_cached : len(prompt.tokens)]

    def assert_same(self, other: "Filled") -> None:
        """The first layer's rows are equal bit for bit."""
        assert_equal(self.rows[:2], other.rows[:2])
        for of_layer, expected in zip(self.rows[2:].float(), other.rows[2:].float()):
            assert_close(of_layer, expected, pcc=PCC)
        assert_close(self.logits, other.logits, pcc=PCC)


def filled(replica, *prompts: Prompt) -> list[Filled]:
    """Prefill the prompts together."""
    for batch in batches_of(replica, prompts):
        logits = prefill_logits(replica, batch)
    return [Filled(replica, prompt, logits) for prompt in prompts]


@pytest.fixture(scope="module")
def whole(replica, token_ids) -> Filled:
    return filled(replica, Prompt(0, token_ids, 0, scattered(replica, TOKENS)))[0]


@pytest.mark.parametrize("cuts", [
    (32, 33, 127, 128, 129),  # at and beside the borders of blocks and chunks
    (TOKENS - 1,),  # the last token alone: its block's beginning is computed again, and not written
    (77, 300),
])  # fmt: skip
def test_chunks_cut_anywhere(replica, token_ids, whole, cuts):
    blocks = scattered(replica, TOKENS, seed=len(cuts))
    others = sorted(set(range(replica.blocks)) - set(blocks))
    before = caches(replica)[:, others]
    for start, end in zip((0, *cuts), (*cuts, TOKENS)):
        (chunk,) = filled(replica, Prompt(2, token_ids[:end], start, blocks))
    everything = Prompt(2, token_ids, 0, blocks)
    chunk.rows = Filled(replica, everything, [None, None, chunk.logits]).rows
    chunk.assert_same(whole)
    assert_equal(caches(replica)[:, others], before)


@pytest.fixture(scope="module")
def hits(replica, token_ids):
    """Three prompts with cached prefixes, and what each gives in a batch of its own. Two share 64 tokens' blocks."""
    blocks = scattered(replica, 20 * 32, seed=11)
    shared, longer = token_ids[:64], token_ids[100:196]
    prompts = [
        Prompt(2, shared + token_ids[200:240], 64, blocks[:2] + blocks[2:4]),
        Prompt(0, shared + token_ids[300:301], 64, blocks[:2] + blocks[4:5]),
        Prompt(3, longer + token_ids[400:420], 96, blocks[5:8] + blocks[8:9]),
    ]
    for prefix in (prompts[0], prompts[2]):
        filled(replica, Prompt(1, prefix.tokens[: prefix.num_cached], 0, prefix.blocks))
    cache = caches(replica)
    return prompts, cache, [filled(replica, prompt)[0] for prompt in prompts], [*blocks[2:5], blocks[8]]


def chunks(prompts, start: int | None) -> tuple[PrefillChunk, ...]:
    return tuple(PrefillChunk(p, start, p.num_cached, len(p.tokens)) for p in prompts)


PLANNED = {
    # The third prompt's cached tokens from 64 to 95 are computed again, and not written.
    "chunks with one start": lambda prompts: PrefillBatch(256, chunks(prompts, 64), chunked=True, sequences=4),
    "from their first tokens": lambda prompts: PrefillBatch(512, chunks(prompts, 0), chunked=False),
    "as planned": None,
}


@pytest.mark.parametrize("plan", PLANNED)
def test_cached_prompts_in_one_batch_equal_prompts_alone(replica, hits, plan):
    """Blocks that no prompt owns alone are equal bit for bit."""
    prompts, cache, alone, own = hits
    filled(replica, Prompt(1, [7] * (len(own) * replica.block), 0, own))  # another sequence's tokens
    (batch,) = [PLANNED[plan](prompts)] if PLANNED[plan] else batches_of(replica, prompts)
    logits = prefill_logits(replica, batch)
    others = sorted(set(range(replica.blocks)) - set(own))
    assert_equal(caches(replica)[:, others], cache[:, others])
    for prompt, expected in zip(prompts, alone):
        Filled(replica, prompt, logits).assert_same(expected)

"""Attention against a softmax over the visible keys, head by head.

tests/test_vectors.py compares the rounding with a chip's records.
"""

import math

import pytest
import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.errors import GoldenError
from golden_mesh.goldens import attention_decode
from goldens.support import EXACT, assert_near, assert_same, sharded

DIM = 64
ROUNDED = 0.008  # of attention's size: scores, weights and results are rounded to bfloat16 on a chip (0.004 to 0.006)


def program(**options) -> ttnn.SDPAProgramConfig:
    """With the exact exp, which is not ttnn's default."""
    chunks = dict(q_chunk_size=32, k_chunk_size=32) | options
    return ttnn.SDPAProgramConfig(
        compute_with_storage_grid_size=(8, 8), exp_approx_mode=False, **chunks
    )


HOW = dict(compute_kernel_config=EXACT, program_config=program())


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, mask: torch.Tensor
) -> torch.Tensor:
    """One head: q [rows, DIM], k and v [length, DIM], additive mask [rows, length]"""
    scores = (q @ k.T).double() * scale + mask
    weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
    return (weights @ v.double()).float()


def attend_heads(q, k, v, scale, mask):
    """q [heads, rows, DIM], k and v [kv heads, length, DIM], mask [1 or heads, rows, length]"""
    group = len(q) // len(k)
    masks = mask.expand(len(q), -1, -1)
    return torch.stack(
        [attend(q[h], k[h // group], v[h // group], scale, masks[h]) for h in range(len(q))]
    )


def causal(rows: int, start: int = 0) -> torch.Tensor:
    """[1, rows, start + rows]: 0 for keys up to start + row, -inf for later keys."""
    return torch.full((rows, start + rows), -math.inf).triu(start + 1)[None]


@pytest.mark.parametrize("heads, kv_heads", ((7, 1), (4, 2), (2, 2)))
@pytest.mark.parametrize("scale", (None, 0.3))
@pytest.mark.parametrize("is_causal", (True, False))
def test_prefill(chips, heads, kv_heads, scale, is_causal):
    rows = 64
    q, k, v = (chips.draw(1, count, rows, DIM) for count in (heads, kv_heads, kv_heads))
    got = ttnn.transformer.scaled_dot_product_attention(
        chips.put(q), chips.put(k), chips.put(v), is_causal=is_causal, scale=scale, **HOW
    )
    mask = causal(rows) if is_causal else torch.zeros(1, rows, rows)
    want = [
        attend_heads(*(t[0] for t in qkv), scale or DIM**-0.5, mask)[None] for qkv in zip(q, k, v)
    ]
    assert_near(got, want, ROUNDED)


def test_prefill_under_a_mask(chips):
    """The kernel scales the sum of scores and mask, and so the mask's values."""
    rows = 64
    q, k, v = (chips.draw(1, 2, rows, DIM) for _ in range(3))
    mask = torch.randn(1, 1, rows, rows).bfloat16().float()
    got = ttnn.transformer.scaled_dot_product_attention(
        chips.put(q), chips.put(k), chips.put(v), attn_mask=chips.put(mask), is_causal=False, **HOW
    )
    want = [
        attend_heads(*(t[0] for t in qkv), DIM**-0.5, mask[0] * DIM**-0.5)[None]
        for qkv in zip(q, k, v)
    ]
    assert_near(got, want, ROUNDED)


def paged(chips, users: int, blocks: int, size: int, kv_heads: int):
    """A cache of keys or values. Each chip holds [users * blocks + 3, kv_heads, size, DIM]."""
    return chips.draw(users * blocks + 3, kv_heads, size, DIM)


def line(cache: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """A user's blocks one after another: [kv heads, len(blocks) * size, DIM]"""
    return torch.cat([cache[b] for b in blocks], 1)


@pytest.mark.parametrize("by", ("number", "tensor"))
def test_chunked_prefill_sees_the_cache_up_to_itself(chips, by):
    start, rows, size, blocks = 64, 32, 32, 8
    k_cache, v_cache = paged(chips, 1, blocks, size, 2), paged(chips, 1, blocks, size, 2)
    q = chips.draw(1, 4, rows, DIM)
    table = torch.randperm(blocks + 3)[:blocks][None]
    where = {"chunk_start_idx": start}
    if by == "tensor":
        where = {"chunk_start_idx_tensor": chips.put_ints(torch.tensor([start]))}
    got = ttnn.transformer.chunked_scaled_dot_product_attention(
        *map(chips.put, (q, k_cache, v_cache)),
        chips.put_ints(table),
        **where,
        scale=0.25,  # only this op refuses a scale that float32 does not hold exactly, such as 0.3
        **HOW,
    )
    seen = lambda cache: line(cache, table[0])[:, : start + rows]
    want = [
        attend_heads(queries[0], seen(k), seen(v), 0.25, causal(rows, start))[None]
        for queries, k, v in zip(q, k_cache, v_cache)
    ]
    assert_near(got, want, ROUNDED)


def decode_want(q, lines, positions, scale):
    """q [1, B, heads, DIM], lines(user) -> k, v [kv heads, length, DIM]"""
    result = torch.zeros(1, len(positions), q.shape[2], DIM)
    for user, position in enumerate(positions):
        if position >= 0:
            k, v = (t[:, : position + 1] for t in lines(user))
            result[0, user] = attend_heads(
                q[0, user][:, None], k, v, scale, torch.zeros(1, 1, position + 1)
            )[:, 0]
    return result


@pytest.mark.parametrize("heads, kv_heads", ((20, 1), (18, 2)))
@pytest.mark.parametrize("scale", (None, 0.3))
def test_paged_decode_sees_each_user_up_to_its_position(chips, heads, kv_heads, scale):
    users, blocks, size = 8, 4, 32
    k_cache, v_cache = (paged(chips, users, blocks, size, kv_heads) for _ in "kv")
    table = torch.randperm(users * blocks + 3)[: users * blocks].reshape(users, blocks)
    positions = [0, 31, 32, 127, -1, 50, 64, 99]
    q = chips.draw(1, users, heads, DIM)
    got = ttnn.transformer.paged_scaled_dot_product_attention_decode(
        chips.put(q, memory_config=sharded("HEIGHT", (32, DIM), users)),
        chips.put(k_cache),
        chips.put(v_cache),
        chips.put_ints(table),
        cur_pos_tensor=chips.put_ints(torch.tensor(positions)),
        scale=scale,
        memory_config=ttnn.L1_MEMORY_CONFIG,
        **HOW,
    )
    want = [
        decode_want(
            queries, lambda u: (line(k, table[u]), line(v, table[u])), positions, scale or DIM**-0.5
        )
        for queries, k, v in zip(q, k_cache, v_cache)
    ]
    assert_near(got, want, ROUNDED)


@pytest.mark.parametrize("tokens", (2, 4))
def test_tokens_of_a_user_each_see_the_cache_up_to_their_position(chips, tokens):
    """spec_multi_pos_tiles: the tokens of a user share its page table. The result is that of users of their own."""
    starts, blocks, size, heads = [0, 28, 31, 92, -1], 4, 32, 20
    users = len(starts)
    k_cache, v_cache = (paged(chips, users, blocks, size, 1) for _ in "kv")
    table = torch.randperm(users * blocks + 3)[: users * blocks].reshape(users, blocks)
    # the last token of a user may repeat a position
    positions = [
        max(s, min(s + i, s + tokens - 2)) if s >= 0 else -1 for s in starts for i in range(tokens)
    ]
    q = chips.draw(1, users * tokens, heads, DIM)
    tiles = [F.pad(one, (0, 0, 0, 32 - heads)).reshape(1, users, tokens * 32, DIM) for one in q]

    def decode(queries, tables, **how):
        return ttnn.transformer.paged_scaled_dot_product_attention_decode(
            *map(chips.put, (queries, k_cache, v_cache)), chips.put_ints(tables),
            cur_pos_tensor=chips.put_ints(torch.tensor(positions)), compute_kernel_config=EXACT,
            program_config=program(max_cores_per_head_batch=1), **how,
        )  # fmt: skip

    got = chips.get(decode(tiles, table, spec_multi_pos_tiles=tokens))
    got = [one.reshape(1, users * tokens, 32, DIM)[:, :, :heads] for one in got]
    lines = lambda k, v: lambda u: (line(k, table[u // tokens]), line(v, table[u // tokens]))
    want = [
        decode_want(queries, lines(k, v), positions, DIM**-0.5)
        for queries, k, v in zip(q, k_cache, v_cache)
    ]
    assert_near(got, want, ROUNDED)
    # Tokens within one chunk of keys give the bits that they have as users of their own.
    alone = chips.get(decode(q, table.repeat_interleave(tokens, 0)))
    same = [i for i, s in enumerate(starts) if s >= 0 and s // 32 == (s + tokens - 1) // 32]
    rows = [user * tokens + i for user in same for i in range(tokens)]
    assert_same([one[:, rows] for one in got], [one[:, rows] for one in alone])


def test_blocks_that_a_user_does_not_reach_do_not_matter(chips):
    """Page table entries behind a user's position may hold any value."""
    users, blocks, size = 8, 4, 32
    cache, q = paged(chips, users, blocks, size, 1), chips.draw(1, users, 4, DIM)
    table = torch.arange(users * blocks).reshape(users, blocks)
    positions = [0, 31, 32, 127, 5, 50, 64, 99]
    beyond = torch.arange(blocks) * size > torch.tensor(positions)[:, None]
    decode = lambda t: ttnn.transformer.paged_scaled_dot_product_attention_decode(  # noqa: E731
        *map(chips.put, (q, cache, cache)),
        chips.put_ints(t),
        cur_pos_tensor=chips.put_ints(torch.tensor(positions)),
    )
    assert_same(decode(table.masked_fill(beyond, -1)), chips.get(decode(table)))


def test_blocks_longer_than_a_chunk_of_keys(chips):
    """The last block holds chunks behind all users' positions."""
    users, blocks, size = 8, 2, 64
    cache, q = paged(chips, users, blocks, size, 1), chips.draw(1, users, 20, DIM)
    table = torch.arange(users * blocks).reshape(users, blocks)
    for positions in ([0, 31, 12, 27, -1, 5, 30, 9], [0, 31, 32, 95, -1, 50, 64, 64]):
        got = ttnn.transformer.paged_scaled_dot_product_attention_decode(
            *map(chips.put, (q, cache, cache)),
            chips.put_ints(table),
            cur_pos_tensor=chips.put_ints(torch.tensor(positions)),
            compute_kernel_config=EXACT,
            program_config=program(max_cores_per_head_batch=1),
        )
        want = [
            decode_want(queries, lambda u: (line(k, table[u]),) * 2, positions, DIM**-0.5)
            for queries, k in zip(q, cache)
        ]
        assert_near(got, want, ROUNDED)


def test_many_long_sequences_are_computed_a_few_users_at_a_time(chips, monkeypatch):
    monkeypatch.setattr(attention_decode, "POSITIONS_AT_A_TIME", 300)
    test_decode_over_a_contiguous_cache(chips, "tensor")


@pytest.mark.parametrize("by", ("list", "tensor"))
def test_decode_over_a_contiguous_cache(chips, by):
    users, heads, kv_heads, length = 8, 18, 2, 128
    q, k, v = (
        chips.draw(*s) for s in ((1, users, heads, DIM), *[(users, kv_heads, length, DIM)] * 2)
    )
    positions = [0, 31, 32, 127, 5, 50, 64, 99]
    where = (
        {"cur_pos": positions}
        if by == "list"
        else {"cur_pos_tensor": chips.put_ints(torch.tensor(positions))}
    )
    got = ttnn.transformer.scaled_dot_product_attention_decode(
        chips.put(q), chips.put(k), chips.put(v), **where, scale=0.3, **HOW
    )
    want = [
        decode_want(q[c], lambda u: (k[c][u], v[c][u]), positions, 0.3) for c in range(chips.count)
    ]
    assert_near(got, want, ROUNDED)


@pytest.mark.parametrize("users_first", (True, False))
def test_decode_under_a_mask_sees_the_whole_cache(chips, users_first):
    users, heads, length = 8, 20, 128
    q, k, v = (chips.draw(*s) for s in ((1, users, heads, DIM), *[(users, 1, length, DIM)] * 2))
    mask = torch.randn(1, users, heads, length).bfloat16().float()
    got = ttnn.transformer.scaled_dot_product_attention_decode(
        *map(chips.put, (q, k, v)),
        is_causal=False,
        attn_mask=chips.put(mask.transpose(0, 1) if users_first else mask),
        **HOW,
    )
    want = []
    for c in range(chips.count):
        outputs = [
            attend_heads(
                q[c][0, u][:, None], k[c][u], v[c][u], DIM**-0.5, mask[0, u][:, None] * DIM**-0.5
            )[:, 0]
            for u in range(users)
        ]
        want.append(torch.stack(outputs)[None])
    assert_near(got, want, ROUNDED)


def test_a_block_that_the_cache_does_not_have_is_refused(chips):
    cache = chips.put(chips.draw(4, 1, 32, DIM))
    with pytest.raises(GoldenError, match="4 blocks"):
        ttnn.transformer.paged_scaled_dot_product_attention_decode(
            chips.put(chips.draw(1, 8, 4, DIM)),
            cache,
            cache,
            chips.put_ints(torch.full((8, 4), 4)),
            cur_pos_tensor=chips.put_ints(torch.full((8,), 3)),
        )


def test_a_keyword_that_is_none_is_the_ops_default(chips):
    """tt-metal's newer modules give sliding_window_size=None in every call of attention."""
    q = chips.put(torch.randn(1, 4, 32, 64))
    want = chips.get(ttnn.transformer.scaled_dot_product_attention(q, q, q, is_causal=True))
    got = ttnn.transformer.scaled_dot_product_attention(
        q, q, q, is_causal=True, sliding_window_size=None
    )
    assert_same(got, want)

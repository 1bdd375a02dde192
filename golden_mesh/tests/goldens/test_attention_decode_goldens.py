"""Attention of one query a user against a softmax over the keys up to its position."""

import pytest
import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.errors import GoldenError
from golden_mesh.goldens import attention_decode
from goldens.support import EXACT, Put, assert_near, assert_same, attention, bf16, examples, ints, sdpa_program, sharded

DIM, LATENT, USERS, LENGTH = 64, 96, 8, 128
ROUNDED = 0.008  # of attention's size (test_attention_goldens.py)
POSITIONS = [0, 31, 32, 127, 5, 50, 64, 99]
SKIPPED = [0, 31, 32, 127, -1, 50, 64, 99]
T = ttnn.transformer


HOW = dict(compute_kernel_config=EXACT, program_config=sdpa_program())


def decode(q, k, v, **options):
    return T.scaled_dot_product_attention_decode(q, k, v, **(HOW | options))


def paged(q, k, v, table, positions, **options):
    attend = T.paged_scaled_dot_product_attention_decode
    return attend(q, k, v, table, cur_pos_tensor=positions, **(HOW | options))


def decoded(q, k, v, positions=None, window=LENGTH, **options) -> torch.Tensor:
    """q [1, B, heads, dim], k and v [B, kv heads, length, dim] -> [1, B, heads, dim], 0 at -1."""
    seen = None
    if positions is not None:
        ago = torch.as_tensor(positions)[:, None] - torch.arange(k.shape[2])
        seen = ((ago >= 0) & (ago < window))[:, None, None]
    y = attention(q[0].unsqueeze(2), k, v, seen, **options).squeeze(2)
    return y[None] if seen is None else torch.where(seen.any(-1), y, 0)[None]


def lines(cache, table):
    """Each user's blocks one after another: [B, kv heads, length, dim]"""
    return cache[table].transpose(1, 2).flatten(2, 3)


def pages(users: int = USERS, blocks: int = 4, spare: int = 3):
    """A page table of random blocks."""
    return lambda: torch.randperm(users * blocks + spare)[: users * blocks].view(users, blocks)


def q(heads: int, users: int = USERS, dim: int = DIM) -> tuple:
    return 1, users, heads, dim


def cache(kv_heads: int = 1, users: int = USERS, dim: int = DIM) -> tuple:
    return users, kv_heads, LENGTH, dim


PAGES, BLOCKS = ints(pages()), (USERS * 4 + 3, 1, 32, DIM)
MASK, ONE_MASK = lambda: bf16(1, USERS, 20, LENGTH), lambda: bf16(1, 1, 20, LENGTH)
AT, FOUR = ints(POSITIONS), ints([3, 31, 64, 127])
EXAMPLES = {
    "decode(x, y, z, cur_pos=POSITIONS, scale=0.3)":
        ("decoded(x, y, z, POSITIONS, scale=0.3)", q(18), cache(2), cache(2)),
    "decode(x, y, z, cur_pos_tensor=u, scale=0.3)": ("decoded(x, y, z, u, scale=0.3)", q(18), cache(2), cache(2), AT),
    # A mask shows the whole cache.
    "decode(x, y, z, is_causal=False, attn_mask=ttnn.transpose(u, 0, 1))":
        ("decoded(x, y, z, added=u[0].unsqueeze(2) * DIM**-0.5)", q(20), cache(), cache(), MASK),
    "decode(x, y, z, is_causal=False, attn_mask=u)  # of all users":
        ("decoded(x, y, z, added=u[0].unsqueeze(2) * DIM**-0.5)", q(20), cache(), cache(), ONE_MASK),
    # The first columns of latents are the values.
    "T.flash_multi_latent_attention_decode(x, y, head_dim_v=64, cur_pos_tensor=z, **HOW)": (
        "decoded(x, y, y[..., :64], z)",
        q(32, 4, LATENT), cache(1, 4, LATENT), FOUR, {"error": 0.012},
    ),
    "T.flash_multi_latent_attention_decode(x, y, head_dim_v=64, cur_pos_tensor=z, sliding_window_size=33, **HOW)": (
        "decoded(x, y, y[..., :64], z, 33)", q(32, 4, LATENT), cache(1, 4, LATENT), FOUR, {"error": 0.03},
    ),
    "T.paged_flash_multi_latent_attention_decode(x, y, None, 64, z, cur_pos_tensor=u, **HOW)": (
        "decoded(x, lines(y, z), lines(y, z)[..., :64], u)",
        q(32, 4, LATENT), (16, 1, 32, LATENT), ints(pages(4, 4, 0)), FOUR, {"error": 0.012},
    ),
}  # fmt: skip
test_examples = examples(EXAMPLES, globals(), error=ROUNDED)


def test_many_long_sequences_are_computed_a_few_users_at_a_time(chips, monkeypatch):
    monkeypatch.setattr(attention_decode, "POSITIONS_AT_A_TIME", 300)
    test_examples(chips, "decode(x, y, z, cur_pos_tensor=u, scale=0.3)")


@pytest.mark.parametrize("heads, kv_heads", ((20, 1), (18, 2)))
@pytest.mark.parametrize("scale", (None, 0.3))
def test_paged_decode_sees_each_user_up_to_its_position(chips, heads, kv_heads, scale):
    blocks, place = (USERS * 4 + 3, kv_heads, 32, DIM), sharded("HEIGHT", (32, DIM), USERS)
    chips.check(
        lambda *tensors: paged(*tensors, scale=scale, memory_config=ttnn.L1_MEMORY_CONFIG),
        lambda q, k, v, table, at: decoded(q, lines(k, table), lines(v, table), at, scale=scale),
        Put(q(heads), memory_config=place), blocks, blocks, PAGES, ints(SKIPPED), error=ROUNDED,
    )  # fmt: skip


@pytest.mark.parametrize("positions", ([0, 31, 12, 27, -1, 5, 30, 9], [0, 31, 32, 95, -1, 50, 64, 64]), ids=str)
@pytest.mark.parametrize("size, chunk", ((64, 32), (32, 64)))
def test_blocks_of_another_size_than_the_chunks_of_keys(chips, positions, size, chunk):
    """The last block holds chunks after all users' positions, or the last chunk blocks."""
    config = sdpa_program(keys=chunk, max_cores_per_head_batch=1)
    how, blocks = dict(program_config=config), (1024 // size, 2, size, DIM)
    chips.check(
        lambda *tensors: paged(*tensors, **how),
        lambda q, k, v, table, at: decoded(q, lines(k, table), lines(v, table), at),
        q(18), blocks, blocks, ints(pages(USERS, 128 // size, 0)), ints(positions), error=ROUNDED,
    )  # fmt: skip


@pytest.mark.parametrize("is_paged", (False, True), ids=("contiguous", "paged"))
@pytest.mark.parametrize("window, with_sink", ((1, False), (33, False), (64, False), (None, True), (33, True)))
def test_windows_and_sinks(chips, window, with_sink, is_paged):
    at, sink = ints([3, 40, 95, 127]), bf16(4) * 8
    how = dict(program_config=sdpa_program(queries=0), sliding_window_size=window)
    if with_sink:
        how["attention_sink"] = chips.put(F.pad(sink.view(-1, 1), (0, 31)))
    want = dict(window=window or LENGTH, sink=sink.double() if with_sink else None)
    calls = {
        True: ("paged(x, y, z, u, v, **how)[:, :, :4]", "decoded(x, lines(y, u), lines(z, u), v, **want)"),
        False: ("decode(x, y, z, cur_pos_tensor=u, **how)[:, :, :4]", "decoded(x, y, z, u, **want)"),
    }
    stored = [(16, 2, 32, DIM)] * 2 + [ints(pages(4, 4, 0))] if is_paged else [cache(2, 4)] * 2
    names = globals() | dict(how=how, want=want)
    chips.check(*calls[is_paged], q(4, 4), *stored, at, error=0.03, names=names)  # exp is rough


@pytest.mark.parametrize("tokens", (2, 4))
def test_tokens_of_a_user_each_see_the_cache_up_to_their_position(chips, tokens):
    """spec_multi_pos_tiles: tokens share their user's page table, and are as users of their own."""
    starts, heads = [0, 28, 31, 92, -1], 20
    users = len(starts)
    k, v = (chips.draw(users * 4 + 3, 1, 32, DIM) for _ in "kv")
    table = pages(users)()
    # the last token of a user may repeat a position
    positions = [max(s, min(s + i, s + tokens - 2)) if s >= 0 else -1 for s in starts for i in range(tokens)]
    queries = chips.draw(1, users * tokens, heads, DIM)
    tiles = [F.pad(one, (0, 0, 0, 32 - heads)).reshape(1, users, tokens * 32, DIM) for one in queries]
    how = dict(program_config=sdpa_program(max_cores_per_head_batch=1))

    def attend(rows, tables, **more):
        given = *map(chips.put, (rows, k, v)), *map(chips.put_ints, (tables, positions))
        return chips.get(paged(*given, **how, **more))

    got = attend(tiles, table, spec_multi_pos_tiles=tokens)
    got = [one.reshape(1, users * tokens, 32, DIM)[:, :, :heads] for one in got]
    tables = table.repeat_interleave(tokens, 0)
    want = [
        decoded(*(x.double() for x in (one, lines(keys, tables), lines(values, tables))), positions)
        for one, keys, values in zip(queries, k, v)
    ]
    assert_near(got, want, ROUNDED)
    # Tokens within one chunk of keys give the bits that they have as users of their own.
    alone = attend(queries, tables)
    same = [i for i, s in enumerate(starts) if s >= 0 and s // 32 == (s + tokens - 1) // 32]
    rows = [user * tokens + i for user in same for i in range(tokens)]
    assert_same([one[:, rows] for one in got], [one[:, rows] for one in alone])


def test_blocks_that_a_user_does_not_reach_do_not_matter(chips):
    """Page table entries after a user's position may hold any value."""
    given = [chips.put(chips.draw(*shape)) for shape in (q(4), BLOCKS)]
    table = torch.arange(USERS * 4).view(USERS, 4)
    beyond = torch.arange(4) * 32 > torch.tensor(POSITIONS)[:, None]
    attend = T.paged_scaled_dot_product_attention_decode
    run = lambda tables: attend(
        given[0], given[1], given[1], chips.put_ints(tables), cur_pos_tensor=chips.put_ints(POSITIONS)
    )
    assert_same(run(table.masked_fill(beyond, -1)), chips.get(run(table)))


def test_refusals(chips):
    """Of a block that the cache does not have, and of a window without order."""
    queries, blocks = chips.put(bf16(*q(4))), chips.put(bf16(4, 1, 32, DIM))
    table, at = chips.put_ints(torch.full((8, 4), 4)), chips.put_ints(torch.full((8,), 3))
    with pytest.raises(GoldenError, match="4 blocks"):
        paged(queries, blocks, blocks, table, at)
    one = chips.put(bf16(1, 1, 64, 64))
    with pytest.raises((GoldenError, RuntimeError), match="(?i)sliding"):
        attend = T.scaled_dot_product_attention_decode
        attend(chips.put(bf16(1, 1, 4, 64)), one, one, is_causal=False, cur_pos=[3], sliding_window_size=20)

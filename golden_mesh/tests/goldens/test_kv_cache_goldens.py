"""Cache writes change the named positions alone, and round values to the cache's dtype."""

import pytest
import torch
import ttnn

from golden_mesh.errors import GoldenError
from goldens.support import assert_same, sharded
from integer_packer import integer_packed

USERS, HEADS, DIM, SIZE, BLOCKS = 8, 2, 64, 32, 4  # SIZE positions a block, BLOCKS blocks a user
DTYPES = pytest.mark.parametrize("dtype", (ttnn.bfloat16, ttnn.bfloat8_b), ids=str)


def page_table() -> torch.Tensor:
    """[USERS, BLOCKS]: random blocks of a cache with three blocks more."""
    return torch.randperm(USERS * BLOCKS + 3)[: USERS * BLOCKS].reshape(USERS, BLOCKS).int()


def make_cache(chips, dtype, entries, length=SIZE):
    """A cache on the chips, a copy that stays unchanged, and the cache's values on each chip."""
    cache = chips.put(chips.draw(entries, HEADS, length, DIM), dtype)
    values = [v.float().clone() for v in chips.get(cache)]
    return cache, ttnn.clone(cache), values


def put_tokens(chips, tokens, start=0):
    return chips.put(tokens, memory_config=sharded("HEIGHT", (32, DIM), USERS, start))


def packed(values: torch.Tensor, dtype) -> torch.Tensor:
    """The values that a chip writes: both roundings to 8 bits go away from zero, 0.5 % larger in all."""
    return integer_packed(values, 7) if dtype == ttnn.bfloat8_b else values


def write(values, tokens, positions, table, dtype):
    """Write the token of each user at its position, in place, in values [entries, HEADS, length, DIM]."""
    for user, position in enumerate(positions):
        if position >= 0:
            block = user if table is None else table[user, position // SIZE]
            inside = position if table is None else position % SIZE
            values[block, :, inside] = packed(tokens[0, user], dtype)


@DTYPES
@pytest.mark.parametrize("by", ("tensor", "list"))
def test_paged_update_writes_one_position_a_user(chips, dtype, by):
    table, positions = page_table(), torch.randint(0, SIZE * BLOCKS, (USERS,)).tolist()
    cache, replica, before = make_cache(chips, dtype, USERS * BLOCKS + 3)
    tokens = chips.draw(1, USERS, HEADS, DIM, scale=3)
    if by == "list":  # ttnn takes a list for contiguous caches only
        cache, replica, before = make_cache(chips, dtype, USERS, SIZE * BLOCKS)
        ttnn.experimental.paged_update_cache(
            cache, put_tokens(chips, tokens), update_idxs=positions
        )
        table = None
    else:
        where = {
            "update_idxs_tensor": chips.put_ints(torch.tensor(positions)),
            "page_table": chips.put_ints(table),
        }
        ttnn.experimental.paged_update_cache(cache, put_tokens(chips, tokens), **where)
    assert_same(replica, before)
    for chip, values in enumerate(before):
        write(values, tokens[chip], positions, table, dtype)
    assert_same(cache, before)


def test_a_negative_position_skips_the_user(chips):
    table, positions = page_table(), [5, -1, 70, -1, 0, 127, -1, 31]
    cache, _, values = make_cache(chips, ttnn.bfloat16, USERS * BLOCKS + 3)
    tokens = chips.draw(1, USERS, HEADS, DIM)
    where = {
        "update_idxs_tensor": chips.put_ints(torch.tensor(positions)),
        "page_table": chips.put_ints(table),
    }
    ttnn.experimental.paged_update_cache(cache, put_tokens(chips, tokens), **where)
    for chip, v in enumerate(values):
        write(v, tokens[chip], positions, table, ttnn.bfloat16)
    assert_same(cache, values)


def test_positions_may_run_in_a_circle(chips):
    """cache_position_modulo: position 70 of a circle of 64 is 6."""
    table, positions = page_table(), torch.randint(0, SIZE * BLOCKS, (USERS,)).tolist()
    cache, _, values = make_cache(chips, ttnn.bfloat16, USERS * BLOCKS + 3)
    tokens = chips.draw(1, USERS, HEADS, DIM)
    where = {
        "update_idxs_tensor": chips.put_ints(torch.tensor(positions)),
        "page_table": chips.put_ints(table),
    }
    ttnn.experimental.paged_update_cache(
        cache, put_tokens(chips, tokens), **where, cache_position_modulo=64
    )
    for chip, v in enumerate(values):
        write(v, tokens[chip], [p % 64 for p in positions], table, ttnn.bfloat16)
    assert_same(cache, values)


def test_a_position_outside_of_the_page_table_is_refused(chips):
    cache, _, _ = make_cache(chips, ttnn.bfloat16, USERS * BLOCKS + 3)
    positions = torch.full((USERS,), SIZE * BLOCKS)
    with pytest.raises(GoldenError, match="position 128"):
        ttnn.experimental.paged_update_cache(
            cache,
            put_tokens(chips, chips.draw(1, USERS, HEADS, DIM)),
            update_idxs_tensor=chips.put_ints(positions),
            page_table=chips.put_ints(page_table()),
        )


@pytest.mark.parametrize("v_dtype", (ttnn.bfloat16, ttnn.bfloat8_b), ids=str)
def test_fused_update_writes_keys_and_values_each_in_their_dtype(chips, v_dtype):
    table, positions = page_table(), torch.randint(0, SIZE * BLOCKS, (USERS,)).tolist()
    k_cache, k_replica, k_before = make_cache(chips, v_dtype, USERS * BLOCKS + 3)
    v_cache, v_replica, v_before = make_cache(chips, v_dtype, USERS * BLOCKS + 3)
    k, v = chips.draw(1, USERS, HEADS, DIM, scale=3), chips.draw(1, USERS, HEADS, DIM)
    ttnn.experimental.paged_fused_update_cache(
        k_cache,
        put_tokens(chips, k, start=32),
        v_cache,
        put_tokens(chips, v),
        update_idxs_tensor=chips.put_ints(torch.tensor(positions)),
        page_table=chips.put_ints(table),
    )
    assert_same(chips.get(k_replica) + chips.get(v_replica), k_before + v_before)
    for chip in range(chips.count):
        write(k_before[chip], k[chip], positions, table, v_dtype)
        write(v_before[chip], v[chip], positions, table, v_dtype)
    assert_same(chips.get(k_cache) + chips.get(v_cache), k_before + v_before)


@DTYPES
@pytest.mark.parametrize("rows", (32, 96, 128))
@pytest.mark.parametrize("by", ("number", "tensor"))
def test_paged_fill_writes_a_prompt_through_the_page_table(chips, dtype, rows, by):
    table, user = page_table(), 5
    cache, replica, values = make_cache(chips, dtype, USERS * BLOCKS + 3)
    prompt = chips.put(chips.draw(1, HEADS, rows, DIM, scale=3), dtype)
    which = (
        {"batch_idx": user}
        if by == "number"
        else {"batch_idx_tensor": chips.put_ints(torch.tensor([user]))}
    )
    ttnn.experimental.paged_fill_cache(cache, prompt, chips.put_ints(table), **which)
    assert_same(replica, values)
    for v, p in zip(values, chips.get(prompt)):
        for position in range(rows):
            v[table[user, position // SIZE], :, position % SIZE] = p[0, :, position].float()
    assert_same(cache, values)


def test_paged_fill_skips_blocks_marked_minus_one(chips):
    table = page_table()
    table[3, 1] = -1
    cache, _, values = make_cache(chips, ttnn.bfloat16, USERS * BLOCKS + 3)
    prompt = chips.draw(1, HEADS, 96, DIM)
    ttnn.experimental.paged_fill_cache(cache, chips.put(prompt), chips.put_ints(table), batch_idx=3)
    for v, p in zip(values, prompt):
        v[table[3, 0]], v[table[3, 2]] = p[0, :, :32], p[0, :, 64:]
    assert_same(cache, values)


@DTYPES
@pytest.mark.parametrize("name", ("fill_cache", "kv_cache.fill_cache_for_user_"))
def test_fill_cache_writes_a_prompt_of_one_user(chips, dtype, name):
    cache, replica, values = make_cache(chips, dtype, USERS, 128)
    prompt = chips.put(chips.draw(1, HEADS, 64, DIM, scale=3), dtype)
    op = ttnn.fill_cache if name == "fill_cache" else ttnn.kv_cache.fill_cache_for_user_
    op(cache, prompt, 3)
    op(cache, prompt, 6, update_idx=32)
    assert_same(replica, values)
    for v, p in zip(values, chips.get(prompt)):
        v[3, :, :64] = v[6, :, 32:96] = p[0].float()
    assert_same(cache, values)


@DTYPES
@pytest.mark.parametrize("name", ("update_cache", "kv_cache.update_cache_for_token_"))
def test_update_cache_writes_one_position_of_all_users(chips, dtype, name):
    cache, replica, values = make_cache(chips, dtype, 32, 64)
    tokens = chips.draw(1, HEADS, 32, DIM, scale=3)
    op = ttnn.update_cache if name == "update_cache" else ttnn.kv_cache.update_cache_for_token_
    op(cache, chips.put(tokens), 41)
    assert_same(replica, values)
    for v, t in zip(values, tokens):
        v[:, :, 41] = packed(t[0], dtype).transpose(0, 1)
    assert_same(cache, values)


def test_update_cache_of_a_few_users_out_of_a_padded_batch(chips):
    cache, _, values = make_cache(chips, ttnn.bfloat16, 8, 64)
    tokens = chips.draw(1, HEADS, 32, DIM)
    ttnn.update_cache(cache, chips.put(tokens), 41, batch_offset=16)
    for v, t in zip(values, tokens):
        v[:, :, 41] = t[0, :, 16:24].transpose(0, 1)
    assert_same(cache, values)


def test_replicated_caches_diverge_where_chips_write_differently(chips):
    """Replicas share a torch tensor until one chip writes a different value."""
    start = torch.randn(USERS, HEADS, SIZE, DIM).bfloat16()
    cache = chips.put(start)
    tokens = chips.draw(1, USERS, HEADS, DIM)
    ttnn.experimental.paged_update_cache(
        cache, put_tokens(chips, tokens), update_idxs_tensor=chips.put_ints(torch.arange(USERS))
    )
    want = [start.float().clone() for _ in range(chips.count)]
    for chip, values in enumerate(want):
        write(values, tokens[chip], range(USERS), None, ttnn.bfloat16)
    assert_same(cache, want)

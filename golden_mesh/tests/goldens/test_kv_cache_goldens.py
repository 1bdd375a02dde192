"""Cache writes change the named positions alone, and round values to the cache's dtype."""

import pytest
import torch
import ttnn

from golden_mesh.errors import GoldenError
from goldens.support import Put, assert_same, bf16, examples, ints, sharded
from integer_packer import integer_packed

USERS, HEADS, DIM, SIZE, BLOCKS = 8, 2, 64, 32, 4  # SIZE positions a block, BLOCKS blocks a user
E = ttnn.experimental
TOKENS = Put((1, USERS, HEADS, DIM), memory_config=sharded("HEIGHT", (32, DIM), USERS))
DTYPES = {"dtype": (ttnn.bfloat16, ttnn.bfloat8_b)}
PAGED, WHOLE = (USERS * BLOCKS + 3, HEADS, SIZE, DIM), (USERS, HEADS, SIZE * BLOCKS, DIM)
PROMPT = (1, HEADS, 64, DIM)
IN_ORDER, SKIPPED = [5, 37, 70, 99, 0, 127, 64, 31], [5, -1, 70, -1, 0, 127, -1, 31]


def page_table() -> torch.Tensor:
    """[USERS, BLOCKS]: random blocks of a cache with three blocks more."""
    return torch.randperm(USERS * BLOCKS + 3)[: USERS * BLOCKS].reshape(USERS, BLOCKS)


def with_a_gap() -> torch.Tensor:
    table = page_table()
    table[3, 1] = -1
    return table


def packed(values: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    """What a chip writes into a bfloat8_b cache: both roundings go away from zero, 0.5 % in all."""
    return integer_packed(values, 7).double() if is_block_float(cache) else values


def is_block_float(cache: torch.Tensor) -> bool:
    """Whether a drawn cache went through bfloat8_b: no value has the last bit of a bfloat16."""
    return not (cache.bfloat16().view(torch.int16) & 1).any()


def updated(cache, tokens, positions, table=None) -> torch.Tensor:
    """cache [entries, HEADS, length, DIM] with the users' tokens at their positions, none at -1."""
    result = cache.clone()
    for user, position in enumerate(positions):
        if position >= 0:
            block = user if table is None else table[user, position // SIZE]
            result[block, :, position % result.shape[2]] = packed(tokens[0, user], cache)
    return result


def filled(cache, prompt, table, user: int) -> torch.Tensor:
    result = cache.clone()
    for position in range(prompt.shape[2]):
        block = table[user, position // SIZE]
        if block >= 0:
            result[block, :, position % SIZE] = prompt[0, :, position]
    return result


def with_prompt(cache, prompt, start: int = 0) -> torch.Tensor:
    """User 3's, from position `start` on."""
    result = cache.clone()
    result[3, :, start : start + 64] = prompt[0]
    return result


def with_position(cache, tokens) -> torch.Tensor:
    """Position 41 of all users. tokens [1, HEADS, users, DIM]"""
    result = cache.clone()
    result[:, :, 41] = packed(tokens[0], cache).transpose(0, 1)
    return result


UPDATE = "E.paged_update_cache(x, y, update_idxs_tensor=z, page_table=u"
ROWS = PAGED, TOKENS, ints(IN_ORDER), ints(page_table)
EXAMPLES = {
    f"{UPDATE})": ("updated(x, y, z, u)", *ROWS),
    # A negative position skips the user.
    f"{UPDATE}, share_cache=False)": ("updated(x, y, z, u)", PAGED, TOKENS, ints(SKIPPED), ints(page_table)),
    # Positions in a circle: 70 is 6.
    f"{UPDATE}, cache_position_modulo=64)": ("updated(x, y, z % 64, u)", *ROWS),
    # ttnn takes a list for contiguous caches only.
    "E.paged_update_cache(x, y, update_idxs=IN_ORDER)": ("updated(x, y, IN_ORDER)", WHOLE, TOKENS),
    # Replicas share a torch tensor until one chip writes a different value.
    "E.paged_update_cache(x, y, update_idxs=IN_ORDER)  # of replicas":
        ("updated(x, y, IN_ORDER)", lambda: bf16(*WHOLE), TOKENS),
    "E.paged_update_cache(x, y, update_idxs_tensor=z)": ("updated(x, y, z)", WHOLE, TOKENS, ints(SKIPPED)),
    "ttnn.update_cache(x, y, 41)": ("with_position(x, y)", (32, HEADS, 64, DIM), Put((1, HEADS, 32, DIM))),
    "ttnn.kv_cache.update_cache_for_token_(x, y, 41)":
        ("with_position(x, y)", (32, HEADS, 64, DIM), Put((1, HEADS, 32, DIM))),
    # A few users out of a padded batch.
    "ttnn.update_cache(x, y, 41, batch_offset=16)":
        ("with_position(x, y[:, :, 16:24])", (USERS, HEADS, 64, DIM), Put((1, HEADS, 32, DIM))),
    "ttnn.fill_cache(x, y, 3)": ("with_prompt(x, y)", WHOLE, PROMPT),
    "ttnn.fill_cache(x, y, 3, update_idx=32)": ("with_prompt(x, y, 32)", WHOLE, PROMPT),
    "ttnn.kv_cache.fill_cache_for_user_(x, y, 3)": ("with_prompt(x, y)", WHOLE, PROMPT),
    "E.paged_fill_cache(x, y, z, batch_idx=3)": ("filled(x, y, z, 3)", PAGED, (1, HEADS, 96, DIM), ints(with_a_gap)),
}  # fmt: skip
for rows in (32, 96, 128):
    given = "filled(x, y, z, 5)", PAGED, (1, HEADS, rows, DIM), ints(page_table)
    EXAMPLES[f"E.paged_fill_cache(x, y, z, batch_idx=5)  # {rows}"] = given
    EXAMPLES[f"E.paged_fill_cache(x, y, z, batch_idx_tensor=u)  # {rows}"] = *given, ints([5])
test_examples = examples(EXAMPLES, globals(), DTYPES, error=0, in_place=True)


def put_tokens(chips, tokens, start: int = 0):
    return chips.put(tokens, memory_config=sharded("HEIGHT", (32, DIM), USERS, start))


@pytest.mark.parametrize("dtype", (ttnn.bfloat16, ttnn.bfloat8_b), ids=str)
def test_fused_updates_write_keys_and_values_and_no_replica_of_them(chips, dtype):
    table, caches = page_table(), [chips.put(chips.draw(*PAGED), dtype) for _ in "kv"]
    replicas, before = list(map(ttnn.clone, caches)), list(map(chips.get, caches))
    k, v = (chips.draw(1, USERS, HEADS, DIM, scale=scale) for scale in (3.0, 1.0))
    E.paged_fused_update_cache(
        caches[0], put_tokens(chips, k, start=32), caches[1], put_tokens(chips, v),
        update_idxs_tensor=chips.put_ints(IN_ORDER), page_table=chips.put_ints(table),
    )  # fmt: skip
    for cache, replica, old, tokens in zip(caches, replicas, before, (k, v)):
        assert_same(replica, old)
        both = zip(old, tokens)
        assert_same(cache, [updated(values.float(), new, IN_ORDER, table) for values, new in both])


def test_rows_of_a_prompt_go_to_places_in_the_caches(chips):
    """A place outside of the cache is skipped."""
    caches, rows = ([bf16(n, HEADS, 32, DIM) for _ in "kv"] for n in (4, 1))
    places = torch.randperm(4 * SIZE)[:32]
    places[5] = -1
    k, v, more_k, more_v = map(chips.put, (*caches, *rows))
    E.indexed_fused_update_cache(k, more_k, v, more_v, chips.put_ints(places[None]))
    for cache, new, tensor in zip(caches, rows, (k, v)):
        want = cache.clone()
        for row, place in enumerate(places.tolist()):
            if place >= 0:
                want[place // SIZE, :, place % SIZE] = new[0, :, row]
        assert_same(tensor, want)


def test_a_position_after_the_page_tables_end_is_refused(chips):
    cache, tokens = chips.put(bf16(*PAGED)), put_tokens(chips, bf16(1, USERS, HEADS, DIM))
    beyond, table = chips.put_ints(torch.full((USERS,), SIZE * BLOCKS)), page_table()
    with pytest.raises(GoldenError, match="position 128"):
        E.paged_update_cache(cache, tokens, update_idxs_tensor=beyond, page_table=chips.put_ints(table))

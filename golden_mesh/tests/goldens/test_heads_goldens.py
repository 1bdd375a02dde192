"""Fused projections into heads and back, in prefill and in decode. They only move data, so they are exact."""

import pytest
import torch
import ttnn

from goldens.support import assert_same, cores, sharded


@pytest.mark.parametrize("heads, kv_heads", ((7, 1), (4, 2), (3, 3)))
@pytest.mark.parametrize("transpose_k", (False, True))
def test_create_qkv_heads_in_prefill(chips, heads, kv_heads, transpose_k):
    rows, dim = 64, 32
    x = chips.draw(1, 1, rows, (heads + 2 * kv_heads) * dim)
    got = ttnn.experimental.nlp_create_qkv_heads(
        chips.put(x), num_heads=heads, num_kv_heads=kv_heads, transpose_k_heads=transpose_k
    )
    column = lambda v, h: v[0, 0, :, h * dim : (h + 1) * dim]  # noqa: E731
    for offset, count, tensor in zip(
        (0, heads, heads + kv_heads), (heads, kv_heads, kv_heads), got
    ):
        want = [torch.stack([column(v, offset + h) for h in range(count)])[None] for v in x]
        if tensor is got[1] and transpose_k:
            want = [w.transpose(-1, -2) for w in want]
        assert_same(tensor, want)


def test_create_qkv_heads_from_queries_and_from_keys_and_values(chips):
    heads, kv_heads, rows, dim = 4, 2, 64, 32
    queries, others = (
        chips.draw(1, 1, rows, heads * dim),
        chips.draw(1, 1, rows, 2 * kv_heads * dim),
    )
    got = ttnn.experimental.nlp_create_qkv_heads(
        chips.put(queries),
        chips.put(others),
        num_heads=heads,
        num_kv_heads=kv_heads,
        transpose_k_heads=False,
    )
    split = (
        lambda v, first, count: torch.stack(  # noqa: E731
            [v[0, 0, :, (first + h) * dim : (first + h + 1) * dim] for h in range(count)]
        )[None]
    )
    assert_same(got[0], [split(v, 0, heads) for v in queries])
    assert_same(got[1], [split(v, 0, kv_heads) for v in others])
    assert_same(got[2], [split(v, kv_heads, kv_heads) for v in others])


@pytest.mark.parametrize("apart", (False, True))
def test_create_qkv_heads_of_shards_of_columns_takes_them_shard_by_shard(chips, apart):
    """Two cores each hold their own queries, keys and values.

    apart: keys and values are in a separate tensor.
    """
    heads, kv_heads, rows, dim, shards = 4, 2, 32, 64, 2
    names = [
        f"{kind}{shard}{i}"
        for shard in range(shards)
        for kind, n in (("q", 2), ("k", 1), ("v", 1))
        for i in range(n)
    ]
    by_name = {name: chips.draw(1, rows, dim) for name in names}

    def joined(kinds: str):
        wide = [
            torch.cat([by_name[n][c] for n in names if n[0] in kinds], -1)[None]
            for c in range(chips.count)
        ]
        return chips.put(
            wide, memory_config=sharded("WIDTH", (32, wide[0].shape[-1] // shards), shards)
        )

    got = ttnn.experimental.nlp_create_qkv_heads(
        *([joined("q"), joined("kv")] if apart else [joined("qkv")]),
        num_heads=heads, num_kv_heads=kv_heads, transpose_k_heads=False,
        memory_config=ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1),
    )  # fmt: skip
    for kind, tensor in zip("qkv", got):
        want = [
            torch.cat([by_name[n][c] for n in names if n[0] == kind])[None]
            for c in range(chips.count)
        ]
        assert_same(tensor, want)


def test_create_qkv_heads_in_decode_for_some_of_the_users(chips):
    """batch_offset (a tensor) and slice_size: users 8 to 15 of 32."""
    heads, kv_heads, dim = 7, 2, 64
    x = chips.draw(1, 1, 32, (heads + 2 * kv_heads) * dim)
    got = ttnn.experimental.nlp_create_qkv_heads_decode(
        chips.put(x, memory_config=sharded("WIDTH", (32, 64), 11)),
        num_heads=heads,
        num_kv_heads=kv_heads,
        batch_offset=chips.put_ints(torch.tensor([8])),
        slice_size=8,
        memory_config=ttnn.L1_HEIGHT_SHARDED_MEMORY_CONFIG,
    )
    assert_same(got[0], [v[0, 0, 8:16, : heads * dim].reshape(1, 8, heads, dim) for v in x])


@pytest.mark.parametrize("users", (32, 8))
@pytest.mark.parametrize("overlap", (True, False))
def test_create_qkv_heads_in_decode(chips, users, overlap):
    heads, kv_heads, dim = 7, 2, 64
    x = chips.draw(1, 1, users, (heads + 2 * kv_heads) * dim)
    got = ttnn.experimental.nlp_create_qkv_heads_decode(
        chips.put(x, memory_config=sharded("WIDTH", (32, 64), 11)),
        num_heads=heads,
        num_kv_heads=kv_heads,
        overlap_qk_coregrid=overlap,
        memory_config=ttnn.L1_HEIGHT_SHARDED_MEMORY_CONFIG,
    )
    for offset, count, tensor in zip(
        (0, heads, heads + kv_heads), (heads, kv_heads, kv_heads), got
    ):
        columns = slice(offset * dim, (offset + count) * dim)
        assert_same(tensor, [v[0, 0, :, columns].reshape(1, users, count, dim) for v in x])


def test_concat_heads_in_prefill(chips):
    x = chips.draw(1, 7, 64, 32)
    got = ttnn.experimental.nlp_concat_heads(chips.put(x))
    assert_same(got, [torch.cat([v[0, h] for h in range(7)], -1)[None, None] for v in x])


@pytest.mark.parametrize("users, heads", ((32, 14), (32, 4), (8, 7)))
def test_concat_heads_in_decode(chips, users, heads):
    """Attention's output has its heads padded to a tile. The result's users are padded to a tile."""
    x = chips.draw(1, users, 32, 64)
    got = ttnn.experimental.nlp_concat_heads_decode(
        chips.put(x, memory_config=sharded("HEIGHT", (32, 64), users)),
        num_heads=heads,
        sub_core_grids=cores(64),
    )
    for chip, values in enumerate(chips.get(got)):
        joined = torch.stack(
            [torch.cat([x[chip][0, u, h] for h in range(heads)]) for u in range(users)]
        )
        assert_same([values[0, 0, :users].float()], [joined])


def test_heads_of_queries_are_cut(chips):
    x = chips.draw(1, 1, 64, 4 * 96)
    got = ttnn.experimental.nlp_create_q_heads_split(chips.put(x), num_heads=4, split_head_dim=64)
    heads = [v.reshape(1, 64, 4, 96).transpose(1, 2) for v in x]
    assert_same(got[0], [h[..., :64] for h in heads])
    assert_same(got[1], [h[..., 64:] for h in heads])


def test_heads_of_boltz_are_joined(chips):
    x = chips.draw(4, 32, 32, 32)
    got = ttnn.experimental.nlp_concat_heads_boltz(chips.put(x))
    assert_same(got, [v.permute(1, 2, 0, 3).reshape(1, 32, 32, 128) for v in x])

"""Projections into heads and back, in prefill and in decode: moves of data, so they are exact."""

import pytest
import torch
import ttnn

from golden_mesh.registry import GOLDENS
from goldens.support import Put, assert_same, block_sharded, examples, ints, sharded

E, T = ttnn.experimental, ttnn.transformer
HEIGHT = ttnn.L1_HEIGHT_SHARDED_MEMORY_CONFIG
DECODED = {"num_heads": 7, "num_kv_heads": 2, "memory_config": HEIGHT}


def split(x, *counts: int):
    """[B, (1,) S, sum(counts) * dim] -> heads [B, count, S, dim] for each count."""
    x = x.squeeze(1) if x.dim() == 4 else x
    heads = x.unflatten(-1, (sum(counts), -1)).transpose(1, 2)
    return heads.split(counts, 1)


def with_turned_keys(parts):
    q, k, v = parts
    return q, k.mT, v


def by_user(x, *counts: int):
    """[1, 1, B, sum(counts) * dim] -> heads [1, B, count, dim] for each count."""
    return x[0].unflatten(-1, (sum(counts), -1)).split(counts, 2)


def joined(heads):
    """[B, heads, S, dim] -> [B, S, heads * dim]"""
    return heads.transpose(1, 2).flatten(2)


def in_columns(users: int, heads: int = 11, dim: int = 64) -> Put:
    return Put((1, 1, users, heads * dim), memory_config=sharded("WIDTH", (32, dim), heads))


def padded_heads(users: int) -> Put:
    """Attention's output: its heads are padded to a tile."""
    return Put((1, users, 32, 64), memory_config=sharded("HEIGHT", (32, 64), users))


EXAMPLES = {
    "E.nlp_create_qkv_heads(x, y, num_heads=4, num_kv_heads=2, transpose_k_heads=False)":
        ("split(x, 4) + split(y, 2, 2)", (1, 1, 64, 128), (1, 1, 64, 128)),
    # Queries alone, as in Whisper's cross attention.
    "E.nlp_create_qkv_heads(x, num_heads=4, num_kv_heads=0, transpose_k_heads=False)":
        ("split(x, 4, 0, 0)", (1, 1, 64, 128)),
    # Users 8 to 15 of 32.
    "E.nlp_create_qkv_heads_decode(x, batch_offset=y, slice_size=8, **DECODED)[:1]":
        ("(by_user(x, 7, 2, 2)[0][:, 8:16],)", in_columns(32), ints([8])),
    "E.nlp_concat_heads(x)": ("joined(x)[:, None]", (1, 7, 64, 32)),
    "T.concatenate_heads(x)": ("joined(x)", (2, 4, 50, 32)),
    "E.nlp_concat_heads_boltz(x)": ("x.permute(1, 2, 0, 3).reshape(1, 32, 32, 128)", (4, 32, 32, 32)),
    "E.nlp_create_q_heads_split(x, num_heads=4, split_head_dim=64)":
        ("split(x, 4)[0].split([64, 32], -1)", (1, 1, 64, 4 * 96)),
    "E.nlp_create_qkv_heads_falcon7b(x)": ("split(x, 71, 1, 1)", (1, 1, 64, 73 * 64)),
    "E.nlp_create_qkv_heads_vit(x)": ("split(x, 12, 12, 12)", (2, 1, 32, 3 * 768)),
    "E.nlp_kv_cache_load_slice(x, seq_len_start=32, seq_len_end=96)": ("x[:, :, 32:96]", (2, 4, 128, 64)),
    "E.rotate_half(x)": ("torch.cat((-x[..., 64:], x[..., :64]), -1)", (1, 1, 64, 128)),
}  # fmt: skip
for heads, kv_heads in ((7, 1), (4, 2), (3, 3)):
    count = f"num_heads={heads}, num_kv_heads={kv_heads}"
    x, want = (1, 1, 64, (heads + 2 * kv_heads) * 32), f"split(x, {heads}, {kv_heads}, {kv_heads})"
    create = f"E.nlp_create_qkv_heads(x, {count}, transpose_k_heads="
    EXAMPLES[f"{create}False)"] = want, x
    EXAMPLES[f"{create}True)"] = f"with_turned_keys({want})", x
for users in (32, 8):
    for overlap in (True, False):
        call = f"E.nlp_create_qkv_heads_decode(x, overlap_qk_coregrid={overlap}, **DECODED)  # {users}"
        EXAMPLES[call] = "by_user(x, 7, 2, 2)", in_columns(users)
for users, heads in ((32, 14), (32, 4), (8, 7)):  # the result's users are padded to a tile
    call = f"E.nlp_concat_heads_decode(x, num_heads={heads}, sub_core_grids=cores(64))"
    EXAMPLES[f"{call}[:, :, :{users}]"] = f"x[:, :, :{heads}].flatten(2)[None]", padded_heads(users)
for kv_heads in (4, 2):
    for transpose in (False, True):
        how = f"num_heads=4, num_kv_heads={kv_heads}, transpose_key={transpose}"
        create, turn = "T.split_query_key_value_and_split_heads", "with_turned_keys" * transpose
        q, kv, qkv = ((2, 50, 32 * count) for count in (4, 2 * kv_heads, 4 + 2 * kv_heads))
        want = f"{turn}(split(x, 4, {kv_heads}, {kv_heads}))"
        EXAMPLES[f"{create}(x, {how})"] = want, qkv
        want = f"{turn}(split(x, 4) + split(y, {kv_heads}, {kv_heads}))"
        EXAMPLES[f"{create}(x, y, {how})"] = want, q, kv

test_examples = examples(EXAMPLES, globals(), error=0)


@pytest.mark.parametrize("apart", (False, True))
def test_create_qkv_heads_of_shards_of_columns_takes_them_shard_by_shard(chips, apart):
    """Two cores each hold their own queries, keys and values.

    apart: keys and values are in a separate tensor.
    """
    by_kind = {kind: chips.draw(count, 32, 64) for kind, count in zip("qkv", (4, 2, 2))}

    def placed(kinds: str):
        """Of each kind the first half of the heads, then of each kind the second half."""
        halves = [
            [by_kind[kind][chip].chunk(2)[half] for half in range(2) for kind in kinds] for chip in range(chips.count)
        ]
        rows = [torch.cat(parts).transpose(0, 1).flatten(1)[None, None] for parts in halves]
        place = sharded("WIDTH", (32, rows[0].shape[-1] // 2), 2)
        return chips.put(rows, memory_config=place)

    got = E.nlp_create_qkv_heads(
        *map(placed, ("q", "kv") if apart else ("qkv",)), num_heads=4, num_kv_heads=2, transpose_k_heads=False,
        memory_config=ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1),
    )  # fmt: skip
    for kind, tensor in zip("qkv", got, strict=True):
        assert_same(tensor, [v[None] for v in by_kind[kind]])


@pytest.mark.parametrize("kv_heads", (4, 2))
@pytest.mark.parametrize("transpose_key", (False, True))
def test_heads_of_a_sharded_tensor_lie_side_by_side(chips, kv_heads, transpose_key):
    """Each kv head: its queries, its key, its value, as ViT and BERT order their weights."""
    q, k, v = (chips.draw(2, count, 32, 32) for count in (4, kv_heads, kv_heads))
    by_group = lambda x: x.unflatten(1, (kv_heads, -1))
    fused = [joined(torch.cat([by_group(p) for p in parts], 2).flatten(1, 2)) for parts in zip(q, k, v)]
    place = block_sharded((32, fused[0].shape[-1] // 2), 2, 2)
    got = T.split_query_key_value_and_split_heads(
        chips.put(fused, memory_config=place), num_heads=4, num_kv_heads=kv_heads,
        transpose_key=transpose_key, memory_config=HEIGHT,
    )  # fmt: skip
    k = [part.mT for part in k] if transpose_key else k
    for tensor, want in zip(got, (q, k, v), strict=True):
        assert_same(tensor, want)


def test_bert_large_heads():
    """Without a device: the library takes this op's grid on a Blackhole only."""
    x = torch.randn(8, 1, 384, 3072).bfloat16()
    op = GOLDENS["ttnn.experimental.split_query_key_value_and_split_heads"].function
    for got, want in zip(op(x, num_heads=16), with_turned_keys(split(x, 16, 16, 16)), strict=True):
        assert torch.equal(got, want)

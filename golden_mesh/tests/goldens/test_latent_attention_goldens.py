"""Attention to latents and joint attention, against torch's attention with explicit values."""

import torch
import torch.nn.functional as F
import ttnn

from goldens.support import EXACT, assert_near

ERROR = 0.012  # of bfloat16 at every step
DIM, VALUES = 96, 64


def program() -> ttnn.SDPAProgramConfig:
    return ttnn.SDPAProgramConfig(
        compute_with_storage_grid_size=(8, 8),
        q_chunk_size=32,
        k_chunk_size=32,
        exp_approx_mode=False,
    )


HOW = dict(program_config=program(), compute_kernel_config=EXACT)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape).bfloat16().float()


def attended(q, k, **options) -> torch.Tensor:
    """Every query head reads the one latent head. Its values are the first columns."""
    heads = q.shape[1]
    k = k.expand(-1, heads, -1, -1)
    return F.scaled_dot_product_attention(q, k, k[..., :VALUES], scale=DIM**-0.5, **options)


def test_prefill(chips):
    q, k = draw(2, 4, 64, DIM), draw(2, 1, 64, DIM)
    got = ttnn.transformer.flash_mla_prefill(chips.put(q), chips.put(k), VALUES, **HOW)
    assert_near(got, attended(q, k, is_causal=True), ERROR)


def test_prefill_of_a_chunk_reads_the_blocks_of_the_table(chips):
    q, k, table = draw(1, 4, 64, DIM), draw(8, 1, 32, DIM), torch.tensor([[5, 2, 7, 0, 1, 3, 4, 6]])
    got = ttnn.transformer.chunked_flash_mla_prefill(
        chips.put(q), chips.put(k), VALUES, chips.put_ints(table), 64, **HOW
    )
    keys = k[table[0, :4]].flatten(0, 2)[None, None]
    mask = torch.arange(128) <= torch.arange(64, 128)[:, None]
    assert_near(got, attended(q, keys, attn_mask=mask), ERROR)


def test_decode_from_whole_and_paged_caches(chips):
    q, k, positions = draw(1, 4, 32, DIM), draw(4, 1, 128, DIM), [3, 31, 64, 127]
    seen = torch.arange(128) <= torch.tensor(positions)[:, None]
    want = torch.stack(
        [
            attended(q[0, u][None, :, None], k[u : u + 1], attn_mask=seen[u : u + 1])[0, :, 0]
            for u in range(4)
        ]
    )
    at = chips.put_ints(torch.tensor(positions))
    got = ttnn.transformer.flash_multi_latent_attention_decode(
        chips.put(q), chips.put(k), head_dim_v=VALUES, cur_pos_tensor=at, **HOW
    )
    assert_near(got, want[None], ERROR)
    table = torch.randperm(16).view(4, 4)
    blocks = torch.empty(16, 1, 32, DIM)
    blocks[table.flatten()] = k.reshape(16, 1, 32, DIM)
    got = ttnn.transformer.paged_flash_multi_latent_attention_decode(
        chips.put(q), chips.put(blocks), head_dim_v=VALUES, page_table_tensor=chips.put_ints(table),
        cur_pos_tensor=at, **HOW,
    )  # fmt: skip
    assert_near(got, want[None], ERROR)


def test_joint_attention_sees_both_sequences(chips):
    first, second = ([draw(1, 4, rows, 64) for _ in range(3)] for rows in (64, 32))
    got = ttnn.transformer.joint_scaled_dot_product_attention(
        *map(chips.put, first), *map(chips.put, second), joint_strategy="rear", **HOW
    )
    want = F.scaled_dot_product_attention(*(torch.cat(pair, 2) for pair in zip(first, second)))
    for tensor, wanted in zip(got, want.split([64, 32], 2), strict=True):
        assert_near(tensor, wanted, ERROR)

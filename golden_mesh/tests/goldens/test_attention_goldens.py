"""Attention of prompts against a softmax over the visible keys.

tests/test_vectors.py compares the rounding with a chip's records.
"""

from itertools import product

import torch
import ttnn

from goldens.support import EXACT, assert_near, attention, bf16, examples, ints, sdpa_program

DIM, LATENT, VALUES = 64, 96, 64
# Of attention's size: a chip rounds scores, weights and results to bfloat16 (0.004 to 0.006).
ROUNDED = 0.008
HOW = dict(compute_kernel_config=EXACT, program_config=sdpa_program())


def prefill(q, k, v, **options):
    return ttnn.transformer.scaled_dot_product_attention(q, k, v, **(HOW | options))


def chunked(q, k, v, *where, **options):
    attend = ttnn.transformer.chunked_scaled_dot_product_attention
    return attend(q, k, v, *where, **(HOW | options))


def ago(rows: int, keys: int, start: int = 0) -> torch.Tensor:
    """How far each key lies before each query, [rows, keys]."""
    return torch.arange(start, start + rows)[:, None] - torch.arange(keys)


def within(window: int, rows: int, keys: int, start: int = 0) -> torch.Tensor:
    return (ago(rows, keys, start) >= 0) & (ago(rows, keys, start) < window)


def together(bounds: list[int]) -> torch.Tensor:
    """Whether query and key are of one window, [rows, rows]."""
    window = torch.bucketize(torch.arange(bounds[-1]), torch.tensor(bounds), right=True)
    return window[:, None] == window


def line(cache: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    """The first positions of one user's blocks: [1, kv heads, length, dim]"""
    return cache[table[0]].transpose(0, 1).flatten(1, 2)[None, :, :length]


def heads(*counts: int, rows: int = 64, dim: int = DIM):
    return [(1, count, rows, dim) for count in counts]


def mask():
    return bf16(1, 1, 64, 64)


def sink():
    return bf16(1, 4, 1, 1) * 8


def blocks():
    return torch.randperm(11)[:8][None]


CACHE, TABLE = (11, 2, 32, DIM), ints(blocks)
START = ints([64])
EXAMPLES = {
    "prefill(x, y, z, attn_mask=u, is_causal=False)": ("attention(x, y, z, added=u)", *heads(2, 2, 2), mask),
    # Only this op refuses a scale that float32 does not hold exactly, such as 0.3.
    "chunked(x, y, z, u, chunk_start_idx=64, scale=0.25)": (
        "attention(x, line(y, u, 96), line(z, u, 96), within(96, 32, 96, 64), scale=0.25)",
        (1, 4, 32, DIM), CACHE, CACHE, TABLE,
    ),
    "chunked(x, y, z, u, chunk_start_idx_tensor=v, scale=0.25)": (
        "attention(x, line(y, u, 96), line(z, u, 96), within(96, 32, 96, 64), scale=0.25)",
        (1, 4, 32, DIM), CACHE, CACHE, TABLE, START,
    ),
    "chunked(x, y, z, u, 64, sliding_window_size=50, attention_sink=v)": (
        "attention(x, line(y, u, 128), line(z, u, 128), within(50, 64, 128, 64), sink=v)",
        (1, 4, 64, DIM), CACHE, CACHE, TABLE, sink,
    ),
    "prefill(x, y, z, is_causal=False, sliding_window_size=40)":
        ("attention(x, y, z, ago(96, 96).abs() <= 20)", *heads(2, 2, 2, rows=96)),
}  # fmt: skip
for causal, scale, counts in product((True, False), (None, 0.3), ((7, 1, 1), (4, 2, 2), (2, 2, 2))):
    call = f"prefill(x, y, z, is_causal={causal}, scale={scale})  # {counts}"
    seen = "within(64, 64, 64)" if causal else None
    EXAMPLES[call] = f"attention(x, y, z, {seen}, scale={scale})", *heads(*counts), {"error": ROUNDED}
for window in (1, 20, 32, 70, 500):
    call, want = f"sliding_window_size={window})", f"within({window}, 128, 128))"
    inputs = heads(4, 2, 2, rows=128)
    EXAMPLES[f"prefill(x, y, z, {call}"] = f"attention(x, y, z, {want}", *inputs
for causal in (True, False):  # prompts side by side
    bounds = [0, 40, 64, 64, 100, 128] if causal else [0, 20, 128]
    seen = f"together({bounds})" + " & within(128, 128, 128)" * causal
    call = f"prefill(x, y, z, cu_window_seqlens=u, is_causal={causal}, scale=1)"
    inputs = *heads(4, 2, 2, rows=128), ints(bounds)
    EXAMPLES[call] = f"attention(x, y, z, {seen}, scale=1)", *inputs
for window in (None, 40):
    for scale in (None, 0.3):
        call = f"prefill(x, y, z, attention_sink=u, sliding_window_size={window}, scale={scale})"
        want = f"attention(x, y, z, within({window or 96}, 96, 96), sink=u, scale={scale})"
        EXAMPLES[call] = want, *heads(4, 2, 2, rows=96), sink

test_examples = examples(EXAMPLES, globals(), error=6e-3)

JOINT = HOW | dict(joint_strategy="rear")
PAIRED = [*heads(4, 4, 4), *heads(4, 4, 4, rows=32)]
OTHER_FORMS = {
    # Every query head reads the one latent head. Its values are the first columns.
    "ttnn.transformer.flash_mla_prefill(x, y, VALUES, **HOW)": (
        "attention(x, y, y[..., :VALUES], within(64, 64, 64))",
        (2, 4, 64, LATENT), (2, 1, 64, LATENT),
    ),
    "ttnn.transformer.chunked_flash_mla_prefill(x, y, VALUES, z, 64, **HOW)": (
        "attention(x, line(y, z, 128), line(y, z, 128)[..., :VALUES], within(128, 64, 128, 64))",
        (1, 4, 64, LATENT), (11, 1, 32, LATENT), TABLE,
    ),
    "ttnn.transformer.joint_scaled_dot_product_attention(x, y, z, u, v, w, **JOINT)": (
        "attention(*(torch.cat(pair, 2) for pair in ((x, u), (y, v), (z, w)))).split([64, 32], 2)",
        *PAIRED,
    ),
}  # fmt: skip
test_latents_and_joint_attention = examples(OTHER_FORMS, globals(), error=0.012)

ON_GRID = dict(compute_with_storage_grid_size=ttnn.CoreCoord(8, 8), compute_kernel_config=EXACT)
QUERIES = (1, 8, 32, 64)
# Each user's row of x by the user's own matrix.
PRODUCTS = {
    "E.attn_matmul(x, y, **ON_GRID)": ("torch.einsum('hbk,bkn->hbn', x[0], y[:, 0])[None]", QUERIES, (32, 1, 64, 96)),
    "E.group_attn_matmul(x, y, **ON_GRID)": (
        "torch.einsum('hbk,bhkn->hbn', x[0], y.repeat_interleave(4, 1))[None]", QUERIES,
        (32, 2, 64, 96),
    ),
    # Whole tiles of tokens.
    "E.attn_matmul_from_cache(x, y, num_tokens=40, transpose_hw=True, **ON_GRID)":
        ("torch.einsum('hbk,bnk->hbn', x[0], y[:, 0, :64])[None]", QUERIES, (32, 1, 128, 64)),
    "E.attn_matmul_from_cache(x, y, num_tokens=40, transpose_hw=False, **ON_GRID)":
        ("torch.einsum('hbk,bkn->hbn', x[0], y[:, 0, :64])[None]", QUERIES, (32, 1, 128, 64)),
}  # fmt: skip
test_products = examples(PRODUCTS, globals(), error=3e-3)


def test_ring_joint_attention(chips, several_chips):
    n = 64 * chips.count
    valid = n - 20
    q, k, v = (bf16(1, 2, n, DIM) for _ in range(3))
    joint = [bf16(1, 2, 32, DIM) for _ in range(3)]
    seen = torch.cat((torch.arange(n) < valid, torch.ones(32, dtype=torch.bool)))
    both = [torch.cat(pair, 2) for pair in zip((q, k, v), joint)]
    want = attention(*(x.double() for x in both), seen[None].expand(n + 32, -1))
    parts = [
        ttnn.from_torch(
            x, ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=chips.device,
            mesh_mapper=ttnn.ShardTensorToMesh(chips.device, dim=2),
        )
        for x in (q, k, v)
    ]  # fmt: skip
    config = sdpa_program(compute_with_storage_grid_size=(8, 6))
    y, joint_y, _ = ttnn.transformer.ring_joint_scaled_dot_product_attention(
        *parts, *map(chips.put, joint), persistent_output_buffer_k=chips.put(torch.zeros_like(k)),
        persistent_output_buffer_v=chips.put(torch.zeros_like(v)), joint_strategy="rear", logical_n=valid,
        program_config=config, compute_kernel_config=EXACT, dim=2, multi_device_global_semaphore=chips.semaphores(2),
        num_links=1, cluster_axis=1, mesh_device=chips.device, topology=ttnn.Topology.Linear,
        ccl_core_grid_offset=ttnn.CoreCoord(0, 6),
    )  # fmt: skip
    assert_near(y, list(want[:, :, :n].chunk(chips.count, 2)), ROUNDED)
    assert_near(joint_y, want[:, :, n:], ROUNDED)

"""Rotary embedding, in complex numbers: pair (x0, x1) at position p is (x0 + i x1) * exp(i p w)."""

import pytest
import torch
import ttnn

from golden_mesh.errors import GoldenError
from goldens.support import Put, examples, sharded

DIM, USERS = 64, 8
E = ttnn.experimental


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, pairs: str) -> torch.Tensor:
    """x [..., DIM] turned by tables that broadcast against it, as complex numbers."""
    if pairs == "neighbors":
        split = lambda t: (t[..., ::2], t[..., 1::2])
    else:
        split = lambda t: (t[..., : DIM // 2], t[..., DIM // 2 :])
    result = torch.complex(*split(x)) * torch.complex(split(cos)[0], split(sin)[0])
    if pairs == "neighbors":
        return torch.stack([result.real, result.imag], -1).flatten(-2)
    return torch.cat([result.real, result.imag], -1)


def tables(count: int, pairs: str, by_user: bool = False) -> list[Put]:
    """cos and sin for neighboring pairs or halves, of the first positions or of users in shards."""
    positions = torch.arange(count) * 37 % 500 if by_user else torch.arange(count)
    angles = torch.outer(positions.float(), 1e4 ** (-torch.arange(0, DIM, 2) / DIM))
    in_halves = torch.cat([angles] * 2, -1)
    angles = angles.repeat_interleave(2, -1) if pairs == "neighbors" else in_halves
    both = [table.bfloat16().float() for table in (angles.cos(), angles.sin())]
    if not by_user:
        return [Put(table[None, None]) for table in both]
    place = sharded("HEIGHT", (32, DIM), count)
    return [Put(table[None, :, None], memory_config=place) for table in both]


def swap_matrix(copies: int = 1) -> Put:
    """[1, 1, 32 * copies, 32]: x @ matrix is (-x1, x0, -x3, x2, ...)"""
    matrix = torch.zeros(32, 32)
    for i in range(0, 32, 2):
        matrix[i, i + 1], matrix[i + 1, i] = 1, -1
    matrix = matrix.repeat(copies, 1)[None, None]
    return Put(matrix, memory_config=sharded("HEIGHT", (32, 32), copies) if copies > 1 else None)


def in_users(heads: int, users: int = USERS, start: int = 0) -> Put:
    return Put((1, users, heads, DIM), memory_config=sharded("HEIGHT", (32, DIM), users, start))


NEIGHBORS, HALVES = "neighbors", "halves"
PROMPT, LLAMA = (1, 3, 64, DIM), "E.rotary_embedding_llama"
FUSED = in_users(7, 32), in_users(2, 32, start=32), *tables(64, NEIGHBORS, True)
EXAMPLES = {
    f"{LLAMA}(x, y, z, u)": ("rotated(x, y, z, NEIGHBORS)", PROMPT, *tables(64, NEIGHBORS), swap_matrix()),
    f"{LLAMA}(x, y, z, u, is_decode_mode=False)": (  # reads the first rows
        "rotated(x, y[:, :, :64], z[:, :, :64], NEIGHBORS)", PROMPT, *tables(160, NEIGHBORS),
        swap_matrix(),
    ),
    f"{LLAMA}(x, y, z, u, is_decode_mode=True)": (
        "rotated(x, y, z, NEIGHBORS)", in_users(7), *tables(USERS, NEIGHBORS, True),
        swap_matrix(USERS),
    ),
    f"{LLAMA}_fused_qk(x, y, z, u, v)": (
        "rotated(x, z[:, :32], u[:, :32], NEIGHBORS), rotated(y, z[:, 32:], u[:, 32:], NEIGHBORS)",
        *FUSED, swap_matrix(64),
    ),
    "E.rotary_embedding_hf(x, y, z)": ("rotated(x, y, z, HALVES)", PROMPT, *tables(64, HALVES)),
    "E.rotary_embedding_hf(x, y, z, is_decode_mode=True)":
        ("rotated(x, y, z, HALVES)", in_users(7), *tables(USERS, HALVES, True)),
}  # fmt: skip
for users, rows, table in ((1, 64, 64), (1, 40, 128), (2, 33, 96)):
    # The result has whole tiles of rows.
    want, x = f"rotated(x, y[:, :, :{rows}], z[:, :, :{rows}], HALVES)", (users, 4, rows, DIM)
    EXAMPLES[f"E.rotary_embedding(x, y, z)[:, :, :{rows}]"] = want, x, *tables(table, HALVES)
for token in (0, 5, 127):
    call, x = f"E.rotary_embedding(x, y, z, {token})[:, :, :20]", (1, 4, 20, DIM)
    want = f"rotated(x, y[:, :, {token}, None], z[:, :, {token}, None], HALVES)"
    EXAMPLES[call] = want, x, *tables(128, HALVES)

test_examples = examples(EXAMPLES, globals(), steps=3)


def test_a_matrix_that_differs_between_cores_is_refused(chips):
    matrix = swap_matrix(64)
    matrix.values[..., 40 * 32 :, :] = 0
    with pytest.raises(GoldenError, match="different matrices"):
        E.rotary_embedding_llama_fused_qk(*map(chips.put_input, (*FUSED, matrix)))

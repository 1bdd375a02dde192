"""Rotary embedding, in complex numbers: pair (x0, x1) at position p is (x0 + i x1) * exp(i p w)."""

import pytest
import torch
import ttnn

from golden_mesh.errors import GoldenError
from goldens.support import assert_close, sharded

DIM = 64


def angles(positions: torch.Tensor) -> torch.Tensor:
    """[N, DIM / 2]"""
    return torch.outer(positions.float(), 1e4 ** (-torch.arange(0, DIM, 2) / DIM))


def tables(positions: torch.Tensor, pairs: str) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [N, DIM] as bfloat16 holds them, for neighboring pairs or for halves."""
    a = angles(positions)
    spread = a.repeat_interleave(2, -1) if pairs == "neighbors" else torch.cat([a, a], -1)
    return spread.cos().bfloat16().float(), spread.sin().bfloat16().float()


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, pairs: str) -> torch.Tensor:
    """x [..., DIM] turned by tables that broadcast against it, as complex numbers."""
    if pairs == "neighbors":
        split = lambda t: (t[..., ::2], t[..., 1::2])  # noqa: E731
    else:
        split = lambda t: (t[..., : DIM // 2], t[..., DIM // 2 :])  # noqa: E731
    turn = torch.complex(split(cos)[0], split(sin)[0])
    result = torch.complex(*split(x)) * turn
    if pairs == "neighbors":
        return torch.stack([result.real, result.imag], -1).flatten(-2)
    return torch.cat([result.real, result.imag], -1)


def swap_matrix(copies: int = 1) -> torch.Tensor:
    """[1, 1, 32 * copies, 32]: x @ matrix is (-x1, x0, -x3, x2, ...)"""
    matrix = torch.zeros(32, 32)
    for i in range(0, 32, 2):
        matrix[i, i + 1], matrix[i + 1, i] = 1, -1
    return matrix.repeat(copies, 1)[None, None]


@pytest.mark.parametrize("cached", (64, 160))
def test_llama_prefill_reads_the_first_rows_of_the_tables(chips, cached):
    x = chips.draw(1, 3, 64, DIM)
    cos, sin = tables(torch.arange(cached), "neighbors")
    got = ttnn.experimental.rotary_embedding_llama(
        *map(chips.put, (x, cos[None, None], sin[None, None], swap_matrix()))
    )
    assert_close(got, [rotated(v, cos[:64], sin[:64], "neighbors") for v in x], steps=3)


@pytest.mark.parametrize("heads", (7, 2))
def test_llama_decode_rotates_each_user_by_its_position(chips, heads):
    users = 8
    x = chips.draw(1, users, heads, DIM)
    cos, sin = tables(torch.randint(0, 500, (users,)), "neighbors")
    per_user = lambda t: chips.put(
        t[None, :, None], memory_config=sharded("HEIGHT", (32, DIM), users)
    )  # noqa: E731
    got = ttnn.experimental.rotary_embedding_llama(
        chips.put(x, memory_config=sharded("HEIGHT", (32, DIM), users)),
        per_user(cos),
        per_user(sin),
        chips.put(swap_matrix(users), memory_config=sharded("HEIGHT", (32, 32), users)),
        is_decode_mode=True,
    )
    assert_close(got, [rotated(v, cos[:, None], sin[:, None], "neighbors") for v in x], steps=3)


def fused(chips, users, matrix, q, k, cos, sin):
    q_cores, k_cores = (
        sharded("HEIGHT", (32, DIM), users),
        sharded("HEIGHT", (32, DIM), users, start=32),
    )
    both = sharded("HEIGHT", (32, DIM), 2 * users) if users == 32 else None
    table = lambda t: chips.put(torch.cat([t, t])[None, :, None], memory_config=both)  # noqa: E731
    return ttnn.experimental.rotary_embedding_llama_fused_qk(
        chips.put(q, memory_config=q_cores),
        chips.put(k, memory_config=k_cores),
        table(cos),
        table(sin),
        chips.put(matrix, memory_config=sharded("HEIGHT", (32, 32), 2 * users)),
    )


def test_fused_decode_rotates_queries_and_keys(chips):
    q, k = chips.draw(1, 32, 7, DIM), chips.draw(1, 32, 2, DIM)
    cos, sin = tables(torch.randint(0, 500, (32,)), "neighbors")
    got_q, got_k = fused(chips, 32, swap_matrix(64), q, k, cos, sin)
    assert_close(got_q, [rotated(v, cos[:, None], sin[:, None], "neighbors") for v in q], steps=3)
    assert_close(got_k, [rotated(v, cos[:, None], sin[:, None], "neighbors") for v in k], steps=3)


def test_a_matrix_that_differs_between_cores_is_refused(chips):
    matrix = swap_matrix(64)
    matrix[..., 40 * 32 :, :] = 0
    q, k = chips.draw(1, 32, 7, DIM), chips.draw(1, 32, 2, DIM)
    with pytest.raises(GoldenError, match="different matrices"):
        fused(chips, 32, matrix, q, k, *tables(torch.arange(32), "neighbors"))


def test_hf_prefill(chips):
    x = chips.draw(1, 3, 64, DIM)
    cos, sin = tables(torch.arange(64), "halves")
    got = ttnn.experimental.rotary_embedding_hf(
        chips.put(x), chips.put(cos[None, None]), chips.put(sin[None, None])
    )
    assert_close(got, [rotated(v, cos, sin, "halves") for v in x], steps=3)


def test_hf_decode(chips):
    users = 8
    x = chips.draw(1, users, 7, DIM)
    cos, sin = tables(torch.randint(0, 500, (users,)), "halves")
    config = sharded("HEIGHT", (32, DIM), users)
    got = ttnn.experimental.rotary_embedding_hf(
        chips.put(x, memory_config=config),
        chips.put(cos[None, :, None], memory_config=config),
        chips.put(sin[None, :, None], memory_config=config),
        is_decode_mode=True,
    )
    assert_close(got, [rotated(v, cos[:, None], sin[:, None], "halves") for v in x], steps=3)

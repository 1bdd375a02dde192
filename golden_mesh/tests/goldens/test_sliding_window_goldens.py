"""Attention with a sliding window and with sinks, prefill and decode, against a softmax over all
keys.
"""

import pytest
import torch
import ttnn

from golden_mesh.errors import GoldenError
from goldens.support import EXACT, assert_near

ERROR = 6e-3
GRID = ttnn.CoreCoord(8, 8)


def draw(*shape):
    return torch.randn(shape).bfloat16().float()


def program(queries=32, keys=32):
    return ttnn.SDPAProgramConfig(
        compute_with_storage_grid_size=GRID, q_chunk_size=queries, k_chunk_size=keys, exp_approx_mode=False
    )  # fmt: skip


def attention(q, k, v, seen, sink=None, scale=None):
    """q [B, heads, S, dim], k and v [B, kv heads, L, dim], seen [S, L] or [B, 1, S, L], sink
    [heads].
    """
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = q.double() @ k.transpose(-1, -2)
    scores = scores.masked_fill(~seen, -torch.inf)
    if sink is not None:
        column = sink.double().view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, column), -1)
    weights = torch.softmax(scores * (q.shape[-1] ** -0.5 if scale is None else scale), -1)
    return weights[..., : k.shape[2]] @ v


def distance(rows: int, keys: int, start: int = 0):
    """How far each key lies before each query, [rows, keys]."""
    return torch.arange(start, start + rows)[:, None] - torch.arange(keys)


def prefill(chips, q, k, v, **options):
    options = {"program_config": program(), "compute_kernel_config": EXACT} | options
    return ttnn.transformer.scaled_dot_product_attention(*map(chips.put, (q, k, v)), **options)


@pytest.mark.parametrize("window", (1, 20, 32, 70, 500))
def test_a_causal_window_is_of_the_last_keys(chips, window):
    q, k, v = draw(1, 4, 128, 64), draw(1, 2, 128, 64), draw(1, 2, 128, 64)
    far = distance(128, 128)
    want = attention(q, k, v, (far >= 0) & (far < window))
    got = prefill(chips, q, k, v, is_causal=True, sliding_window_size=window)
    assert_near(got, want, ERROR)


def test_a_window_on_both_sides(chips):
    q, k, v = (draw(1, 2, 96, 64) for _ in range(3))
    want = attention(q, k, v, distance(96, 96).abs() <= 20)
    got = prefill(chips, q, k, v, is_causal=False, sliding_window_size=40)
    assert_near(got, want, ERROR)


@pytest.mark.parametrize("scale", (None, 0.3))
@pytest.mark.parametrize("window", (None, 40))
def test_a_sink_takes_weight_from_every_query(chips, window, scale):
    q, k, v, sink = draw(1, 4, 96, 64), draw(1, 2, 96, 64), draw(1, 2, 96, 64), draw(4) * 8
    far = distance(96, 96)
    want = attention(q, k, v, (far >= 0) & (far < (window or 96)), sink, scale)
    got = prefill(
        chips, q, k, v, attention_sink=chips.put(sink.view(1, 4, 1, 1)), sliding_window_size=window, scale=scale
    )  # fmt: skip
    assert_near(got, want, ERROR)


def paged(x, order):
    """[B, kv heads, L, dim] -> blocks of 32 positions, shuffled."""
    blocks = x.unflatten(2, (-1, 32)).transpose(1, 2).flatten(0, 1)
    result = torch.empty_like(blocks)
    result[order] = blocks
    return result


def test_a_chunk_of_a_prompt_with_a_window_and_sinks(chips):
    q, k, v, sink = draw(1, 4, 64, 64), draw(1, 2, 128, 64), draw(1, 2, 128, 64), draw(4) * 8
    order = torch.randperm(4)
    far = distance(64, 128, start=64)
    want = attention(q, k, v, (far >= 0) & (far < 50), sink)
    got = ttnn.transformer.chunked_scaled_dot_product_attention(
        *map(chips.put, (q, paged(k, order), paged(v, order))), chips.put_ints(order.view(1, 4)), 64,
        program_config=program(), compute_kernel_config=EXACT, sliding_window_size=50,
        attention_sink=chips.put(sink.view(1, 4, 1, 1)),
    )  # fmt: skip
    assert_near(got, want, ERROR)


POSITIONS = torch.tensor([3, 40, 95, 127])


def decoded(chips, window, sink, is_paged, heads=4, **options):
    """Return (the op's result, the expected result) for four users, [1, B, heads, dim] each."""
    q, k, v = draw(1, 4, heads, 64), draw(4, 2, 128, 64), draw(4, 2, 128, 64)
    far = POSITIONS[:, None] - torch.arange(128)
    seen = ((far >= 0) & (far < (window or 128)))[:, None, None]
    want = attention(q[0].unsqueeze(2), k, v, seen, sink).squeeze(2)[None]
    options |= dict(compute_kernel_config=EXACT, sliding_window_size=window)
    options |= dict(program_config=program(0, 32), cur_pos_tensor=chips.put_ints(POSITIONS))
    if sink is not None:
        columns = torch.nn.functional.pad(sink.view(-1, 1), (0, 31))
        options["attention_sink"] = chips.put(columns)
    if not is_paged:
        op = ttnn.transformer.scaled_dot_product_attention_decode
        return op(chips.put(q), chips.put(k), chips.put(v), **options), want
    order = torch.randperm(16)
    op = ttnn.transformer.paged_scaled_dot_product_attention_decode
    table = chips.put_ints(order.view(4, 4))
    return op(
        chips.put(q), chips.put(paged(k, order)), chips.put(paged(v, order)), table, **options
    ), want


@pytest.mark.parametrize("is_paged", (False, True), ids=("contiguous", "paged"))
@pytest.mark.parametrize("window", (1, 33, 64))
def test_a_window_in_decode(chips, window, is_paged):
    got, want = decoded(chips, window, None, is_paged)
    assert_near([g[:, :, :4] for g in chips.get(got)], want, 0.03)  # exp is rough


@pytest.mark.parametrize("is_paged", (False, True), ids=("contiguous", "paged"))
@pytest.mark.parametrize("window", (None, 33))
def test_a_sink_in_decode(chips, window, is_paged):
    got, want = decoded(chips, window, draw(4) * 8, is_paged)
    assert_near([g[:, :, :4] for g in chips.get(got)], want, 0.03)


def test_a_window_of_a_decode_that_is_not_causal_is_refused(chips):
    q, k = chips.put(draw(1, 1, 4, 64)), chips.put(draw(1, 1, 64, 64))
    with pytest.raises((GoldenError, RuntimeError), match="(?i)sliding"):
        ttnn.transformer.scaled_dot_product_attention_decode(
            q, k, k, is_causal=False, cur_pos=[3], sliding_window_size=20
        )


def test_ring_joint_attention(chips, several_chips):
    n, joint, heads, dim = 64 * chips.count, 32, 2, 64
    q, k, v = (draw(1, heads, n, dim) for _ in range(3))
    jq, jk, jv = (draw(1, heads, joint, dim) for _ in range(3))
    valid = n - 20
    seen = torch.cat((torch.arange(n) < valid, torch.ones(joint, dtype=torch.bool)))
    both = [torch.cat(pair, 2) for pair in ((q, jq), (k, jk), (v, jv))]
    want = attention(*both, seen[None].expand(n + joint, -1))

    def parts(x):
        return ttnn.from_torch(
            x, ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=chips.device,
            mesh_mapper=ttnn.ShardTensorToMesh(chips.device, dim=2),
        )  # fmt: skip

    grid = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(7, 6))})
    semaphores = [ttnn.create_global_semaphore(chips.device, grid, 0) for _ in range(2)]
    config = ttnn.SDPAProgramConfig(
        compute_with_storage_grid_size=ttnn.CoreCoord(8, 6), q_chunk_size=32, k_chunk_size=32, exp_approx_mode=False
    )  # fmt: skip
    y, joint_y, _ = ttnn.transformer.ring_joint_scaled_dot_product_attention(
        parts(q), parts(k), parts(v), *map(chips.put, (jq, jk, jv)),
        persistent_output_buffer_k=chips.put(torch.zeros_like(k)), persistent_output_buffer_v=chips.put(torch.zeros_like(v)),
        joint_strategy="rear", logical_n=valid, program_config=config, compute_kernel_config=EXACT, dim=2,
        multi_device_global_semaphore=semaphores, num_links=1, cluster_axis=1, mesh_device=chips.device,
        topology=ttnn.Topology.Linear, ccl_core_grid_offset=ttnn.CoreCoord(0, 6),
    )  # fmt: skip
    assert_near(y, list(want[:, :, :n].chunk(chips.count, 2)), ERROR)
    assert_near(joint_y, want[:, :, n:], ERROR)

"""A row's result has equal bits alone and in any batch.

A chip computes each row of a tile separately, and each user's attention on separate cores. Torch does not
promise this (arithmetic/product.py). So the tests run with several numbers of threads. Results are float32 if
an op gives float32, because rounding to bfloat16 hides differences.
"""

from functools import partial

import pytest
import torch
import ttnn

from goldens.support import EXACT, assert_same

ROWS = 33  # a whole tile and one more
CONFIGS = {
    "float32-dest": EXACT,
    "bfloat16-dest": ttnn.WormholeComputeKernelConfig(
        math_fidelity=ttnn.MathFidelity.HiFi2, fp32_dest_acc_en=False
    ),
}


@pytest.fixture(params=(1, 3), ids=lambda n: f"{n}-threads")
def threads(request):
    """The number of torch's threads, which share a product."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def check_rows(chips, x: torch.Tensor, op, dtype=ttnn.float32) -> None:
    """Check op's rows of [1, 1, ROWS, W].

    They equal the rows for one row, for three rows, and for all rows in another order.
    """
    put = lambda t: chips.put(t, dtype)  # noqa: E731
    whole = [v.double() for v in chips.get(op(put(x)))]
    for start, count in ((0, 1), (17, 1), (32, 1), (5, 3)):
        alone = chips.get(op(put(x[:, :, start : start + count].contiguous())))
        assert_same(alone, [v[:, :, start : start + count] for v in whole])
    rotated = chips.get(op(put(x.flip(2).contiguous())))
    assert_same(rotated, [v.flip(2) for v in whole])


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("inner, columns", ((96, 45), (320, 96), (70, 32), (1056, 640)))
def test_linear(chips, threads, config, inner, columns):
    w, bias = chips.put(torch.randn(1, 1, inner, columns)), chips.put(torch.randn(1, columns))
    op = partial(
        ttnn.linear, bias=bias, activation="silu", dtype=ttnn.float32, compute_kernel_config=config
    )
    check_rows(chips, torch.randn(1, 1, ROWS, inner), lambda x: op(x, w))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_matmul_of_batches(chips, threads, config):
    a, b = torch.randn(3, 4, ROWS, 320), torch.randn(3, 4, 320, 70)
    op = lambda x, y: chips.get(
        ttnn.matmul(chips.put(x), chips.put(y), dtype=ttnn.float32, compute_kernel_config=config)
    )  # noqa: E731
    whole = op(a, b)
    for row in (0, 17, 32):
        assert_same(op(a[:, :, row : row + 1], b), [v[:, :, row : row + 1] for v in whole])
    assert_same(op(a[1:2], b[1:2]), [v[1:2] for v in whole])


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("name", ("rms_norm", "layer_norm", "softmax"))
def test_norms_and_softmax(chips, config, name):
    weights = (
        {} if name == "softmax" else {"weight": chips.put(torch.randn(1, 224)), "epsilon": 1e-5}
    )
    op = lambda x: getattr(ttnn, name)(x, **weights, compute_kernel_config=config)  # noqa: E731
    check_rows(chips, torch.randn(1, 1, ROWS, 224), op)


@pytest.mark.parametrize(
    "name", ("silu", "gelu", "sigmoid", "exp", "tanh", "mish", "exp2", "rsqrt")
)
def test_functions_of_elements(chips, name):
    """The width is no multiple of the processor's vector length."""
    op = ttnn.gelu if name == "gelu" else getattr(ttnn, name)
    x = torch.randn(1, 1, ROWS, 45) * 3
    check_rows(chips, x.abs() + 0.01 if name == "rsqrt" else x, op)


def test_rotary(chips):
    """A token's result does not depend on later tokens."""
    x, cos, sin = torch.randn(1, 4, 64, 64), torch.randn(1, 1, 64, 64), torch.randn(1, 1, 64, 64)
    op = ttnn.experimental.rotary_embedding_hf
    turn = lambda rows: chips.get(
        op(*(chips.put(t) for t in (x[:, :, :rows].contiguous(), cos, sin)))
    )  # noqa: E731
    assert_same(turn(32), [v[:, :, :32] for v in turn(64)])


def program(keys: int) -> ttnn.SDPAProgramConfig:
    return ttnn.SDPAProgramConfig(
        compute_with_storage_grid_size=(8, 8),
        q_chunk_size=32,
        k_chunk_size=keys,
        exp_approx_mode=False,
    )


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("keys, most", ((32, 1), (32, 16), (128, 2), (64, 3)))
def test_decode_attention(chips, threads, config, keys, most):
    """A user's result does not depend on the lengths of the others, with one core a head and several."""
    users, heads, blocks = 8, 7, 8
    k, v = torch.randn(users * blocks, 1, 32, 64), torch.randn(users * blocks, 1, 32, 64)
    q, table = torch.randn(1, users, heads, 64), torch.randperm(users * blocks).view(users, blocks)
    how = program(keys)
    how.max_cores_per_head_batch = most

    def attend(positions, q, k):
        return chips.get(
            ttnn.transformer.paged_scaled_dot_product_attention_decode(
                *map(chips.put, (q, k, v)), chips.put_ints(table),
                cur_pos_tensor=chips.put_ints(torch.tensor(positions)),
                program_config=how, compute_kernel_config=config,
            )
        )  # fmt: skip

    first = attend([5, 100, 31, 40, 77, 150, 2, 90], q, k)
    others = torch.ones(len(k), dtype=torch.bool)
    others[table[1]] = others[table[4]] = False
    changed = torch.where(others[:, None, None, None], k * 2, k)
    for positions in ([255, 100, 255, 0, 77, 255, 255, 1], [-1, 100, -1, -1, 77, -1, -1, -1]):
        q[:, [0, 2, 3, 5, 6, 7]] *= 1.5
        second = attend(positions, q, changed)
        for user in (1, 4):
            assert_same([s[:, user] for s in second], [f[:, user] for f in first])


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("keys", (32, 64))
def test_prefill_attention(chips, threads, config, keys):
    """A token's result does not depend on later tokens or on other users."""
    q, k, v = torch.randn(2, 4, 128, 64), torch.randn(2, 2, 128, 64), torch.randn(2, 2, 128, 64)
    attend = lambda users, rows: chips.get(  # noqa: E731
        ttnn.transformer.scaled_dot_product_attention(
            *(chips.put(x[users, :, :rows].contiguous()) for x in (q, k, v)),
            is_causal=True, program_config=program(keys), compute_kernel_config=config,
        )
    )  # fmt: skip
    whole = attend(slice(0, 2), 128)
    assert_same(attend(slice(0, 2), 64), [x[:, :, :64] for x in whole])
    assert_same(attend(slice(1, 2), 128), [x[1:] for x in whole])
    assert_same(attend(slice(0, 1), 96), [x[:1, :, :96] for x in whole])


def test_operations_of_sampling(chips):
    x = torch.randn(1, 1, ROWS, 96)
    check_rows(chips, x, lambda t: ttnn.cumsum(t, dim=-1))
    check_rows(chips, x, lambda t: ttnn.topk(t, 32, dim=-1, stable=True)[0], ttnn.bfloat16)
    check_rows(chips, x, lambda t: ttnn.topk(t, 32, dim=-1, stable=True)[1], ttnn.bfloat16)
    row_major = lambda t: ttnn.to_layout(t, ttnn.ROW_MAJOR_LAYOUT)  # noqa: E731
    check_rows(chips, x, lambda t: ttnn.argmax(row_major(t), dim=-1, keepdim=True), ttnn.bfloat16)


def test_sampling_uses_each_users_seed(chips):
    """User 3's draw stays when the values of the other 31 users change."""
    values, ids = torch.randn(1, 1, 32, 32), torch.arange(32).expand(1, 1, 32, 32)
    row_major = dict(layout=ttnn.ROW_MAJOR_LAYOUT)

    def draw(values):
        return chips.get(
            ttnn.sampling(
                chips.put(values), chips.put(ids.int(), ttnn.int32, **row_major),
                k=chips.put(torch.full((32,), 32).int(), ttnn.uint32, **row_major),
                p=chips.put(torch.ones(32), ttnn.bfloat16, **row_major),
                temp=chips.put(torch.ones(32), ttnn.bfloat16, **row_major), seed=5,
            )
        )  # fmt: skip

    first = draw(values)
    values[..., torch.arange(32) != 3, :] *= -1
    assert_same([v[..., 3] for v in draw(values)], [v[..., 3] for v in first])

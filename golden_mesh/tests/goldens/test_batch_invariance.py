"""A row's result has equal bits alone and in any batch.

A chip computes each row of a tile separately, and each user's attention on separate cores. Torch
does not promise this (arithmetic/product.py). So the tests run with several numbers of threads.
Results are float32 if an op gives float32, because rounding to bfloat16 hides differences.
"""

import pytest
import torch
import ttnn

from goldens.support import EXACT, assert_same, ints, kernel, sdpa_program

ROWS = 33  # a whole tile and one more
WIDE = ttnn.float32
CONFIGS = {"float32-dest": EXACT, "bfloat16-dest": kernel("HiFi2", wide=False, approximate=True)}
EACH_CONFIG = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


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
    run = lambda rows: [v.double() for v in chips.get(op(chips.put(rows.contiguous(), dtype)))]
    whole = run(x)
    for start, count in ((0, 1), (17, 1), (32, 1), (5, 3)):
        rows = slice(start, start + count)
        assert_same(run(x[:, :, rows]), [v[:, :, rows] for v in whole])
    assert_same(run(x.flip(2)), [v.flip(2) for v in whole])


@EACH_CONFIG
@pytest.mark.parametrize("inner, columns", ((96, 45), (320, 96), (70, 32), (1056, 640)))
def test_linear(chips, threads, config, inner, columns):
    w, bias = chips.put(torch.randn(1, 1, inner, columns)), chips.put(torch.randn(1, columns))
    how = dict(bias=bias, activation="silu", dtype=WIDE, compute_kernel_config=config)
    check_rows(chips, torch.randn(1, 1, ROWS, inner), lambda x: ttnn.linear(x, w, **how))


@EACH_CONFIG
def test_matmul_of_batches(chips, threads, config):
    a, b = torch.randn(3, 4, ROWS, 320), torch.randn(3, 4, 320, 70)
    how = dict(dtype=WIDE, compute_kernel_config=config)
    op = lambda x, y: chips.get(ttnn.matmul(chips.put(x), chips.put(y), **how))
    whole = op(a, b)
    for row in (0, 17, 32):
        assert_same(op(a[:, :, row : row + 1], b), [v[:, :, row : row + 1] for v in whole])
    assert_same(op(a[1:2], b[1:2]), [v[1:2] for v in whole])


@EACH_CONFIG
@pytest.mark.parametrize("name", ("rms_norm", "layer_norm", "softmax"))
def test_norms_and_softmax(chips, config, name):
    how = {"weight": chips.put(torch.randn(1, 224)), "epsilon": 1e-5} if name != "softmax" else {}
    op = lambda x: getattr(ttnn, name)(x, **how, compute_kernel_config=config)
    check_rows(chips, torch.randn(1, 1, ROWS, 224), op)


NAMES = "silu gelu sigmoid exp tanh mish exp2 rsqrt acosh cbrt erfc sinh softsign tanhshrink digamma".split()


@pytest.mark.parametrize("name", NAMES)
def test_functions_of_elements(chips, name):
    """The width is no multiple of the processor's vector length."""
    x = torch.randn(1, 1, ROWS, 45) * 3
    check_rows(chips, x.abs() + 1 if name in ("acosh", "digamma", "rsqrt") else x, getattr(ttnn, name))


def test_sampling_uses_each_users_seed(chips):
    """User 3's draw stays when the values of the other 31 users change."""
    values, ids = torch.randn(1, 1, 32, 32), torch.arange(32).expand(1, 1, 32, 32)
    given = {"k": (32, ttnn.uint32), "p": (1.0, ttnn.bfloat16), "temp": (1.0, ttnn.bfloat16)}
    how = {n: chips.put_input(ints(torch.full((32,), v), dtype)) for n, (v, dtype) in given.items()}
    draw = lambda: chips.get(ttnn.sampling(chips.put(values), chips.put_ints(ids), **how, seed=5))
    first = draw()
    values[..., torch.arange(32) != 3, :] *= -1
    assert_same([v[..., 3] for v in draw()], [v[..., 3] for v in first])


@EACH_CONFIG
@pytest.mark.parametrize("keys, most", ((32, 1), (32, 16), (128, 2), (64, 3)))
def test_decode_attention(chips, threads, config, keys, most):
    """A user's result does not depend on the others' lengths, with one core a head and several."""
    k, v, q = torch.randn(64, 1, 32, 64), torch.randn(64, 1, 32, 64), torch.randn(1, 8, 7, 64)
    table = torch.randperm(64).view(8, 8)
    program = sdpa_program(keys=keys, max_cores_per_head_batch=most)
    how = dict(program_config=program, compute_kernel_config=config)
    op = ttnn.transformer.paged_scaled_dot_product_attention_decode

    def attend(positions, q, k):
        given = *map(chips.put, (q, k, v)), chips.put_ints(table)
        return chips.get(op(*given, cur_pos_tensor=chips.put_ints(positions), **how))

    first = attend([5, 100, 31, 40, 77, 150, 2, 90], q, k)
    others = torch.ones(len(k), dtype=torch.bool)
    others[table[1]] = others[table[4]] = False
    changed = torch.where(others[:, None, None, None], k * 2, k)
    for positions in ([255, 100, 255, 0, 77, 255, 255, 1], [-1, 100, -1, -1, 77, -1, -1, -1]):
        q[:, [0, 2, 3, 5, 6, 7]] *= 1.5
        second = attend(positions, q, changed)
        for user in (1, 4):
            assert_same([s[:, user] for s in second], [f[:, user] for f in first])


@EACH_CONFIG
@pytest.mark.parametrize("keys", (32, 64))
def test_prefill_attention(chips, threads, config, keys):
    """A token's result does not depend on later tokens or on other users."""
    given = [torch.randn(2, heads, 128, 64) for heads in (4, 2, 2)]
    how = dict(program_config=sdpa_program(keys=keys), compute_kernel_config=config)

    def attend(first: int, end: int, rows: int):
        parts = [chips.put(x[first:end, :, :rows].contiguous()) for x in given]
        return chips.get(ttnn.transformer.scaled_dot_product_attention(*parts, **how))

    whole = attend(0, 2, 128)
    assert_same(attend(0, 2, 64), [x[:, :, :64] for x in whole])
    assert_same(attend(1, 2, 128), [x[1:] for x in whole])
    assert_same(attend(0, 1, 96), [x[:1, :, :96] for x in whole])

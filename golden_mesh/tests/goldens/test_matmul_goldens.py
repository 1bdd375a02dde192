"""linear, matmul and minimal_matmul: what they mean (tests/test_vectors.py: how chips compute
them).
"""

import pytest
import torch
import ttnn

from goldens.support import EXACT, assert_close, dram_sharded, sharded


@pytest.mark.parametrize("rows", (1, 33))
@pytest.mark.parametrize("inner, columns", ((70, 45), (200, 96)))
def test_linear_is_each_chips_product(chips, rows, inner, columns):
    x, w = chips.draw(1, 1, rows, inner), chips.draw(1, 1, inner, columns)
    got = ttnn.linear(chips.put(x), chips.put(w), compute_kernel_config=EXACT)
    assert_close(got, [a @ b for a, b in zip(x, w)])


@pytest.mark.parametrize("bias_rank", (1, 2, 4))
def test_linear_adds_the_bias_before_rounding(chips, bias_rank):
    x, w = chips.draw(1, 1, 33, 64), chips.draw(1, 1, 64, 45)
    bias = chips.draw(45, scale=50)
    shaped = [b.reshape([1] * (bias_rank - 1) + [45]) for b in bias]
    placed = chips.put(shaped) if bias_rank > 1 else chips.put(bias[0])
    got = ttnn.linear(chips.put(x), chips.put(w), bias=placed, compute_kernel_config=EXACT)
    used = bias if bias_rank > 1 else bias[:1] * chips.count
    assert_close(got, [a @ b + c for a, b, c in zip(x, w, used)], steps=2)


@pytest.mark.parametrize(
    "activation", ("silu", "gelu", "relu", ttnn.UnaryWithParam(ttnn.UnaryOpType.SILU)), ids=str
)
def test_linear_applies_its_activation_last(chips, activation):
    x, w, bias = (
        chips.draw(1, 1, 32, 64),
        chips.draw(1, 1, 64, 64),
        torch.randn(1, 64).bfloat16().float(),
    )
    got = ttnn.linear(
        chips.put(x),
        chips.put(w),
        bias=chips.put(bias),
        activation=activation,
        compute_kernel_config=EXACT,
    )
    name = activation if isinstance(activation, str) else "silu"
    assert_close(
        got, [getattr(torch.nn.functional, name)(a @ b + bias) for a, b in zip(x, w)], steps=3
    )


def test_linear_applies_the_program_configs_activation(chips):
    x, w = chips.draw(1, 1, 32, 64), chips.draw(1, 1, 64, 128)
    program = ttnn.MatmulMultiCoreReuseMultiCast1DProgramConfig(
        compute_with_storage_grid_size=(4, 1),
        in0_block_w=2,
        out_subblock_h=1,
        out_subblock_w=1,
        per_core_M=1,
        per_core_N=1,
        fuse_batch=True,
        fused_activation=ttnn.UnaryWithParam(ttnn.UnaryOpType.SILU),
        mcast_in0=True,
    )
    got = ttnn.linear(
        chips.put(x), chips.put(w), program_config=program, compute_kernel_config=EXACT
    )
    assert_close(got, [torch.nn.functional.silu(a @ b) for a, b in zip(x, w)])


def test_dram_sharded_linear_with_a_dram_sharded_bias(chips):
    """The decode matmul: operands in shards, a bias of 32 rows of which the first one counts."""
    x, w, bias = (
        chips.draw(1, 1, 32, 256),
        chips.draw(1, 1, 256, 384),
        torch.randn(1, 1, 1, 384).bfloat16().float(),
    )
    got = ttnn.linear(
        chips.put(x, memory_config=sharded("WIDTH", (32, 64), 4)),
        chips.put(w, memory_config=dram_sharded(chips.device, 256, 384)),
        bias=chips.put(bias, memory_config=dram_sharded(chips.device, 32, 384)),
        program_config=ttnn.MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig(
            in0_block_w=2, per_core_M=1, per_core_N=3, fused_activation=None
        ),
        compute_kernel_config=EXACT,
        memory_config=ttnn.L1_WIDTH_SHARDED_MEMORY_CONFIG,
    )
    assert_close(got, [a @ b + bias for a, b in zip(x, w)], steps=2)


@pytest.mark.parametrize("dtype", (ttnn.bfloat8_b, ttnn.bfloat4_b), ids=str)
def test_a_block_float_weight_has_the_values_that_it_holds(chips, dtype):
    x, w = chips.draw(1, 1, 32, 70), chips.draw(1, 1, 70, 96)
    weight = chips.put(w, dtype)
    got = ttnn.linear(chips.put(x), weight, compute_kernel_config=EXACT)
    assert_close(got, [a @ b.float() for a, b in zip(x, chips.get(weight))])


def test_a_float32_result_is_not_rounded_to_bfloat16(chips):
    x, w = chips.draw(1, 1, 32, 70), chips.draw(1, 1, 70, 96)
    got = ttnn.linear(chips.put(x), chips.put(w), dtype=ttnn.float32, compute_kernel_config=EXACT)
    assert_close(got, [a.double() @ b.double() for a, b in zip(x, w)], ttnn.float32)


@pytest.mark.parametrize("transpose_a", (False, True))
@pytest.mark.parametrize("transpose_b", (False, True))
def test_matmul_of_batches(chips, transpose_a, transpose_b):
    a, b = chips.draw(2, 3, 33, 64), chips.draw(2, 3, 64, 40)
    left = [x.transpose(-1, -2) for x in a] if transpose_a else a
    right = [x.transpose(-1, -2) for x in b] if transpose_b else b
    got = ttnn.matmul(
        chips.put(left),
        chips.put(right),
        transpose_a=transpose_a,
        transpose_b=transpose_b,
        compute_kernel_config=EXACT,
    )
    assert_close(got, [x @ y for x, y in zip(a, b)])


def test_linear_transposes_a_weight(chips):
    x, w = chips.draw(1, 1, 33, 64), chips.draw(1, 1, 96, 64)
    got = ttnn.linear(chips.put(x), chips.put(w), transpose_b=True, compute_kernel_config=EXACT)
    assert_close(got, [a @ b.transpose(-1, -2) for a, b in zip(x, w)])


def test_matmul_applies_its_activation(chips):
    x, w = chips.draw(1, 1, 32, 64), chips.draw(1, 1, 64, 96)
    got = ttnn.matmul(chips.put(x), chips.put(w), activation="silu", compute_kernel_config=EXACT)
    assert_close(got, [torch.nn.functional.silu(a @ b) for a, b in zip(x, w)], steps=2)


@pytest.mark.parametrize("a_shape", ((70, 64), (3, 33, 64), (2, 3, 33, 64)))
@pytest.mark.parametrize("b_shape", ((64, 40), (1, 1, 64, 40)))
def test_matmul_broadcasts_a_weight_over_batches(chips, a_shape, b_shape):
    a, b = torch.randn(a_shape).bfloat16(), torch.randn(b_shape).bfloat16()
    got = ttnn.matmul(chips.put(a), chips.put(b), compute_kernel_config=EXACT)
    assert_close(got, a.float() @ b.float())


@pytest.mark.parametrize(
    "silu", (None, ttnn.UnaryWithParam(ttnn.UnaryOpType.SILU)), ids=("plain", "silu")
)
def test_minimal_matmul_with_bias(chips, silu):
    x, w, bias = (
        chips.draw(1, 1, 64, 96),
        chips.draw(1, 1, 96, 128),
        torch.randn(1, 1, 1, 128).bfloat16().float(),
    )
    got = ttnn.experimental.minimal_matmul(
        chips.put(x),
        chips.put(w),
        bias_tensor=chips.put(bias),
        fused_activation=silu,
        compute_kernel_config=EXACT,
    )
    want = [a @ b + bias for a, b in zip(x, w)]
    assert_close(got, [torch.nn.functional.silu(v) for v in want] if silu else want, steps=2)

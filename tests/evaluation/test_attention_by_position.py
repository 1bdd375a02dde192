"""attention-by-position computes as a chip does where it leaves no rounding out, and is right where it leaves all out."""

import pytest
import torch
from golden_mesh.arithmetic.engine import to_bfloat16
from golden_mesh.goldens.attention import chunked_scaled_dot_product_attention
from golden_mesh.goldens.attention_decode import paged_scaled_dot_product_attention_decode

import ttnn
from models.demos.qwen25_7b.evaluation.attention_arithmetic import attend_chunk, attend_step
from models.demos.qwen25_7b.evaluation.attention_error import measure
from models.demos.qwen25_7b.tt.linear import compute_config

DIM, BLOCK = 64, 32


def rand(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).bfloat16()


def paged(x):
    """[kv_heads, tokens, dim] -> [blocks, kv_heads, BLOCK, dim]"""
    return x.unflatten(1, (-1, BLOCK)).transpose(0, 1)


def program(chunk, cores=16):
    return ttnn.SDPAProgramConfig(
        compute_with_storage_grid_size=(8, 8),
        q_chunk_size=32,
        k_chunk_size=chunk,
        exp_approx_mode=False,
        max_cores_per_head_batch=cores,
    )


@pytest.mark.parametrize("group, approximate", ((3, True), (20, False)))
@pytest.mark.parametrize("cores", (1, 4))
def test_a_step_has_the_bits_of_ttnns_operation(cores, group, approximate):
    tokens, position = 512, 490
    q, k, v = rand(2, group, DIM), rand(2, tokens, DIM), 2 * rand(2, tokens, DIM)
    out = torch.empty(1, 1, 2 * group, DIM)
    want = paged_scaled_dot_product_attention_decode(
        q.flatten(0, 1)[None, None],
        paged(k),
        paged(v),
        torch.arange(tokens // BLOCK)[None],
        cur_pos_tensor=torch.tensor([position]),
        program_config=program(64, cores),
        compute_kernel_config=compute_config(),
        dtypes={"input_tensor_q": ttnn.bfloat16},
        out=out,
    )
    seen = (x[:, : position + 1].float() for x in (k, v))
    got = attend_step(q.float(), *seen, chunk=64, cores=cores, approximate=approximate)
    assert torch.equal(got.flatten(0, 1), want[0, 0])


def test_a_chunk_of_a_prompt_has_the_bits_of_ttnns_operation():
    tokens, rows = 256, 32
    q, k, v = rand(2, 3, rows, DIM), rand(2, tokens, DIM), 2 * rand(2, tokens, DIM)
    want = chunked_scaled_dot_product_attention(
        q.flatten(0, 1)[None],
        paged(k),
        paged(v),
        torch.arange(tokens // BLOCK)[None],
        tokens - rows,
        program_config=program(64),
        compute_kernel_config=compute_config(),
    )
    got = attend_chunk(q.float(), k.float(), v.float(), chunk=64)
    assert torch.equal(got.flatten(0, 1), to_bfloat16(want[0]))


def test_exact_parts_and_centered_keys_take_errors_off():
    """Equalized keys are much worse than centered ones, which are as exact as keys without outliers."""
    errors = measure("outliers", 96, draws=1)
    step = {name: error.relative for (case, name), error in errors.items() if "tp 2" in case}
    plain = measure("plain", 96, draws=1)
    assert step["all of these"] < step["as on a chip"] < step["keys equalized"] / 2
    assert step["as on a chip"] < 1.2 * plain["step, 1 user, tp 2", "as on a chip"].relative
    assert plain["step, 1 user, tp 2", "all of these"].relative < 0.006
    assert plain["step, 1 user, tp 2", "exp exact"].relative < 0.01
    assert abs(plain["step, 1 user, tp 1", "all of these"].gain - 1) < 0.002

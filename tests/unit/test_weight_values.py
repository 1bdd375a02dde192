"""A weight that is not a finite number on a chip is refused by name and index when it is read.

Otherwise the model would write "!!!!!".
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint, check_numbers

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
BFLOAT16_MOST = torch.finfo(torch.bfloat16).max
NO_NUMBERS = [(dtype, value) for dtype in DTYPES for value in (math.nan, math.inf, -math.inf)]


@given(st.sampled_from(NO_NUMBERS), st.integers(1, 300), st.integers(1, 70), st.data())
def test_a_bad_value_is_found_anywhere_in_a_tensor(what, rows, columns, data):
    """The last values of a tensor are checked even if they fill no whole SIMD vector."""
    dtype, value = what
    weight = torch.randn(rows, columns).to(dtype)
    place = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    weight[place] = value
    with pytest.raises(UserError, match=rf"^w\[{place[0]}, {place[1]}\] is {value}, which is not a number; download"):
        check_numbers(weight, "w")


@pytest.mark.parametrize("sign", [1, -1])
def test_values_that_overflow_bfloat16(sign):
    """Values round to infinity from half a step above bfloat16's largest value on."""
    half_step = BFLOAT16_MOST * 2**-8 / (2 - 2**-7)
    weight = torch.ones(3)
    weight[2] = sign * (BFLOAT16_MOST + 0.99 * half_step)
    check_numbers(weight, "w")
    weight[2] = sign * (BFLOAT16_MOST + 1.01 * half_step)
    with pytest.raises(UserError, match=r"^w\[2\] is -?3\.39\d+e\+38, which is more than bfloat16 holds"):
        check_numbers(weight, "w")


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_numbers_are_numbers(dtype):
    most = min(torch.finfo(dtype).max, BFLOAT16_MOST)
    check_numbers(torch.tensor([[most, -most], [most, 0.0]], dtype=dtype), "w")


def test_a_checkpoint_is_checked_tensor_by_tensor(tmp_path):
    name = "model.layers.3.mlp.down_proj.weight"
    tensors = load_file(SMALL_CHECKPOINT / "model.safetensors")
    tensors[name][255, 1183] = math.nan
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((SMALL_CHECKPOINT / "config.json").read_bytes())
    checkpoint = Checkpoint.open(tmp_path)
    with pytest.raises(UserError) as refused:
        checkpoint.tensor(name)
    assert f"{tmp_path / 'model.safetensors'}: {name}[255, 1183] is nan" in str(refused.value)
    for other in checkpoint.headers.keys() - {name}:
        checkpoint.tensor(other)

"""Checkpoint reads files of transformers. It refuses damaged files at open, by file and tensor.

A weight that is not a finite number on a chip is refused when it is read: the model would write "!!!!!".
"""

import json
import math
import os
import re
import struct
import weakref
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen2Config

from models.demos.qwen25_7b.config import QWEN25_7B
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.weights import checkpoint
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint, check_numbers
from tests.weights.support import CONFIG, WEIGHTS, change

INDEX = "model.safetensors.index.json"
K_BIAS = "model.layers.1.self_attn.k_proj.bias"


@pytest.fixture
def sharded(hf, tmp_path):
    """A checkpoint of several files and an index, as transformers writes it."""
    hf.save_pretrained(tmp_path / "sharded", max_shard_size="8MB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) >= 3
    return tmp_path / "sharded"


def shard_of(directory: Path, name: str) -> Path:
    return directory / json.loads((directory / INDEX).read_text())["weight_map"][name]


def refusal(directory: Path) -> str:
    with pytest.raises(UserError) as caught:
        Checkpoint.open(directory)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Checkpoints that are read


def test_a_checkpoint_of_several_files_has_all_tensors(sharded, hf):
    opened = Checkpoint.open(sharded)
    assert all(opened.tensor(name).equal(tensor) for name, tensor in hf.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_dtype_is_kept_as_stored(model, dtype):
    change(model, WEIGHTS, {K_BIAS: torch.ones(128, dtype=dtype)})
    assert Checkpoint.open(model).tensor(K_BIAS).dtype == dtype


def peak_resident_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def test_the_7b_opens_without_reading_its_15_gb(tmp_path):
    """The file has the real model's shapes and is one hole. Reading its data would take 15 GB."""
    header, end = {}, 0
    for name, shape in checkpoint.tensor_shapes(QWEN25_7B).items():
        size = 2 * torch.Size(shape).numel()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with open(tmp_path / WEIGHTS, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    assert end == 2 * 7_615_616_512  # the parameter count that Qwen publishes
    config = Qwen2Config(**{k: v for k, v in asdict(QWEN25_7B).items() if k != "eos_token_ids"})
    config.save_pretrained(tmp_path)

    before = peak_resident_mb()
    opened = Checkpoint.open(tmp_path)
    assert peak_resident_mb() - before < 50
    down = opened.tensor("model.layers.27.mlp.down_proj.weight")  # 136 MB, mapped
    assert down.shape == (3584, 18944)
    assert opened.tensor("model.layers.27.self_attn.k_proj.bias").shape == (512,)
    assert peak_resident_mb() - before < 50 + 136


def test_a_tensor_is_read_anew_and_not_kept(sharded):
    opened = Checkpoint.open(sharded)
    held = weakref.ref(opened.tensor(K_BIAS))
    assert held() is None


# Checkpoints that are refused


def test_a_missing_shard(sharded):
    shard = shard_of(sharded, K_BIAS)
    shard.unlink()
    assert f"{shard}: missing" in refusal(sharded)


@pytest.mark.parametrize("length", [-1, -1000, 100, 8, 5, 0])
def test_a_truncated_file(sharded, length):
    """length: of the data that is left; below 0: of the data that is missing."""
    shard = shard_of(sharded, K_BIAS)
    left = length % shard.stat().st_size
    os.truncate(shard, left)
    message = refusal(sharded)
    assert f"{shard}: truncated or no safetensors file, {left} bytes" in message
    assert "download" in message


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": {"a": 1}}', '{"weight_map": []}'])
def test_an_index_that_is_no_index(sharded, content):
    (sharded / INDEX).write_text(content)
    assert str(sharded / INDEX) in refusal(sharded)


OTHERS = "model.Q4_K_M.gguf", "consolidated.00.pth"


@pytest.mark.parametrize("file, has_config", [
    *((file, True) for file in OTHERS), *((file, False) for file in (*OTHERS, "tekken.json", "tokenizer.model"))
])  # fmt: skip
def test_a_folder_of_another_format_says_what_it_is(model, file, has_config):
    (model / WEIGHTS).rename(model / file)
    if not has_config:
        (model / CONFIG).unlink()
    message = refusal(model)
    assert re.search(f"holds {file} .*Hugging Face's format", message) and "download" not in message


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


def test_a_checkpoint_is_checked_tensor_by_tensor(model):
    name = "model.layers.3.mlp.down_proj.weight"
    spoilt = Checkpoint.open(model).tensor(name).clone()
    spoilt[255, 1183] = math.nan
    change(model, WEIGHTS, {name: spoilt})
    checkpoint = Checkpoint.open(model)
    with pytest.raises(UserError) as refused:
        checkpoint.tensor(name)
    assert f"{model / WEIGHTS}: {name}[255, 1183] is nan" in str(refused.value)
    for other in checkpoint.headers.keys() - {name}:
        checkpoint.tensor(other)

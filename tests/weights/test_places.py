"""A start answers with the weights of the checkpoint that it names, wherever that lies and whatever happened to it."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.demos.qwen25_7b.config import DecoderConfig
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.weights.cache import open_checkpoint
from models.demos.qwen25_7b.weights.checkpoint import tensor_shapes
from tests.weights.support import Shards, assert_same, load, logged, made, shards_of

WEIGHTS = "model.safetensors"
CONFIG = dict(
    model_type="qwen2", vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=64, rms_norm_eps=1e-6, rope_theta=1e6, hidden_act="silu",
    tie_word_embeddings=False,
)  # fmt: skip


def write(directory: Path, seed: int, tied: bool = False) -> None:
    """Write a checkpoint whose files have the size and the time of every other one."""
    directory.mkdir(parents=True, exist_ok=True)
    fields = CONFIG | {"tie_word_embeddings": tied}
    generator = torch.Generator().manual_seed(seed)
    shapes = tensor_shapes(DecoderConfig.from_dict(CONFIG))
    tensors = {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in shapes.items()}
    if tied:
        del tensors["lm_head.weight"]
    (directory / "config.json").write_text(json.dumps(fields))
    save_file(tensors, directory / WEIGHTS)
    for file in directory.iterdir():
        os.utime(file, (0, 0))


def answer(directory: Path, cache: Path) -> Shards:
    return load(directory, cache, tp=1)


def right(seed: int, tied: bool = False) -> Shards:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), seed, tied)
        return made(Path(folder), tp=1)


def plain(folder: Path) -> Path:
    write(folder / "model", 1)
    return folder / "model"


def test_tied_embeddings_are_packed_anew(tmp_path):
    """config.json alone changes what the LM head is made of."""
    model = plain(tmp_path)
    assert_same(answer(model, tmp_path / "cache"), right(1))
    write(model, 1, tied=True)
    assert_same(answer(model, tmp_path / "cache"), right(1, tied=True))


def test_weights_of_another_format_are_told_and_not_the_cache_used(tmp_path):
    model = plain(tmp_path)
    answer(model, tmp_path / "cache")
    (model / WEIGHTS).rename(model / "pytorch_model.bin")
    with pytest.raises(UserError, match="holds pytorch_model.bin"):
        answer(model, tmp_path / "cache")


def test_contents_alone_decide(tmp_path):
    """One element that changed is another checkpoint, even with the file's old time; a copy is the same one."""
    cache, model = tmp_path / "cache", plain(tmp_path)
    answer(model, cache)
    tensors = load_file(model / WEIGHTS)
    tensors["model.embed_tokens.weight"][11, 13] += 1
    save_file(tensors, tmp_path / WEIGHTS)
    (model / WEIGHTS).write_bytes((tmp_path / WEIGHTS).read_bytes())  # the file stays the same one
    os.utime(model / WEIGHTS, (0, 0))
    with logged() as lines:
        answer(model, cache)
    folders = {folder.name for folder in cache.glob("*/model-*")}
    assert len(folders) == 2 and any(f"also has {folder} (" in lines[0] for folder in folders)
    clone = Path(shutil.copytree(model, tmp_path / "clone", copy_function=shutil.copyfile))
    with logged() as lines:
        answer(clone, cache)
    assert not lines and {folder.name for folder in cache.glob("*/*-*")} == folders


@pytest.mark.parametrize("home", ["gone", "unknown", "read-only"])
def test_a_home_that_cannot_be_used_means_no_cache_and_one_line(home, tmp_path, monkeypatch):
    model = plain(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    blocked = tmp_path / "file"
    blocked.write_text("")
    if home == "unknown":
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.setenv("HOME", {"gone": f"{blocked}/home"}.get(home, f"{tmp_path}"))
    if home == "read-only":
        (tmp_path / ".cache").write_text("")  # root may write to every directory
    with logged() as lines:
        shards = shards_of(open_checkpoint(model), tp=1)
    assert_same(shards, right(1))
    assert len(lines) == 1 and "XDG_CACHE_HOME" in lines[0] and "\n" not in lines[0]


def test_the_last_start_of_a_path_decides(tmp_path):
    """Two paths have one checkpoint, then one has another. Without weights each has those of its last start."""
    first, second = (tmp_path / f"{name}/model" for name in "ab")
    for path, seed in ((first, 1), (second, 1), (first, 2), (first, 1), (first, 2)):
        write(path, seed)
        assert_same(answer(path, tmp_path / "cache"), right(seed))
    for path, seed in ((first, 2), (second, 1)):
        (path / WEIGHTS).unlink()
        assert_same(answer(path, tmp_path / "cache"), right(seed))

"""The tile cache: stored tiles, shared tiles, and a start from the cache alone."""

import json
import os
import shutil
import stat

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.common.errors import UserError
from models.demos.qwen25_7b.config import BF16, BFP8_KV8
from models.demos.qwen25_7b.loading import CACHE_NAME, builder, default_root
from models.demos.qwen25_7b.loading.opened import open_checkpoint
from models.demos.qwen25_7b.weights import Checkpoint, checkpoint
from tests.loading.support import Messages, assert_same, leftovers, load, load_opened, made, tiles


@pytest.fixture
def packing_refused(monkeypatch):
    """packing_refused(): from then on, packing a shard or opening a checkpoint fails."""

    def refuse():
        monkeypatch.setattr(builder, "build_shard", lambda *_: pytest.fail("a shard was made"))
        monkeypatch.setattr(
            checkpoint, "safe_open", lambda *_, **__: pytest.fail("safetensors were opened")
        )
        monkeypatch.setattr(Checkpoint, "open", lambda *_: pytest.fail("the checkpoint was opened"))

    return refuse


def test_the_second_load_maps_the_first_loads_files(model, cache, right, packing_refused):
    lines = Messages()
    assert_same(load(model, cache, lines=lines), right)
    assert len(lines) == 1 and f"written to {cache}" in lines[0]
    assert len(tiles(cache)) == len(right) and not leftovers(cache)
    packing_refused()
    lines.clear()
    assert_same(load(model, cache, lines=lines), right)
    assert len(lines) == 1 and f"mapped from {cache}" in lines[0]


def test_equal_tensors_share_a_tile(model, cache, packing_refused):
    """The norms of an untrained model are equal tensors."""
    tensors = load_file(model / "model.safetensors")
    ones = {name: torch.ones_like(tensor) for name, tensor in tensors.items() if "norm" in name}
    save_file(tensors | ones, model / "model.safetensors")
    expected = made(model)
    assert_same(load(model, cache), expected)
    assert len(tiles(cache)) == len(expected) - len(ones) + 1
    packing_refused()
    assert_same(load(model, cache), expected)


def test_replicas_of_one_process_read_the_checkpoint_once(model, cache, right, packing_refused):
    """Each replica loads from the one opened model."""
    lines = Messages()
    opened = open_checkpoint(model, cache=cache, say=lines.append)
    assert_same(load_opened(opened), right)
    packing_refused()
    for _ in range(3):
        assert_same(load_opened(opened), right)
    assert [line.split()[3:5] for line in lines] == [["written", "to"], ["mapped", "from"]], (
        "it is not said for each"
    )


def test_without_a_cache_nothing_is_written(model, cache, right, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", f"{cache}")
    assert_same(load_opened(open_checkpoint(model, use_cache=False)), right)
    assert not cache.exists()


def test_shards_that_are_equal_are_kept_once(model, cache):
    """bfp8 and bfp8-kv8 differ only in the KV cache. All splits share embedding and norms."""
    load(model, cache)
    first = set(tiles(cache))
    load(model, cache, recipe=BFP8_KV8)
    assert set(tiles(cache)) == first
    load(model, cache, tp=1)
    both = len(made(model, tp=1)) + len(first)
    config = Checkpoint.open(model).config
    assert len(tiles(cache)) == both - (2 + 2 * config.num_hidden_layers)
    assert_same(load(model, cache, recipe=BF16), made(model, recipe=BF16))


@pytest.mark.parametrize("tp", [4, 8])
def test_every_split_is_read_back(model, cache, tp):
    """tp 8 has heads and columns of zeros, copied KV heads, and shards that are all padding."""
    expected = made(model, tp=tp)
    assert_same(load(model, cache, tp=tp), expected)
    assert_same(load(model, cache, tp=tp), expected)


def test_a_copy_of_a_checkpoint_shares_its_tiles(model, cache, right, tmp_path, monkeypatch):
    load(model, cache)
    copy = shutil.copytree(model, tmp_path / "copy")
    monkeypatch.setattr(builder, "build_shard", lambda *_: pytest.fail("a shard was made"))
    assert_same(load(copy, cache), right)


def test_tiles_of_an_interrupted_load_are_used(model, cache, right):
    load(model, cache)
    kept = tiles(cache)[::2]
    for file in set(tiles(cache)) - set(kept):
        file.unlink()
    shutil.rmtree(cache / "models")
    before = {file: file.stat().st_ino for file in kept}
    assert_same(load(model, cache), right)
    assert {file: file.stat().st_ino for file in kept} == before


# A start from the cache alone


def test_weights_may_be_deleted_once_they_are_in_the_cache(model, cache, right, packing_refused):
    load(model, cache)
    (model / "model.safetensors").unlink()
    packing_refused()
    assert_same(load(model, cache), right)


def test_the_whole_directory_may_be_deleted(model, cache, right, packing_refused):
    load(model, cache)
    shutil.rmtree(model)
    packing_refused()
    assert_same(load(model, cache), right)
    opened = open_checkpoint(model, cache=cache)
    assert json.loads((opened.directory / "tokenizer.json").read_text())["model"]


def test_a_split_that_is_not_cached_needs_the_weights(model, cache):
    load(model, cache)
    (model / "model.safetensors").unlink()
    with pytest.raises(UserError) as caught:
        load(model, cache, tp=1)
    message = str(caught.value)
    assert (
        f"{model}: its weights were deleted" in message
        and "needs" in message
        and "tp 2 with recipe bfp8" in message
    )


def test_deleted_weights_do_not_excuse_another_config(model, cache):
    """With another config, the directory is another model. It cannot use the old model's tiles."""
    load(model, cache)
    (model / "model.safetensors").unlink()
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    with pytest.raises(UserError, match="holds neither"):
        load(model, cache)


def test_a_changed_tokenizer_is_used_and_no_weight_is_read(model, cache, right, monkeypatch):
    load(model, cache)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": 5}))
    monkeypatch.setattr(Checkpoint, "tensor", lambda *_: pytest.fail("a tensor was read"))
    opened = open_checkpoint(model, cache=cache)
    assert json.loads((opened.directory / "generation_config.json").read_text()) == {
        "eos_token_id": 5
    }
    assert_same(load(model, cache), right)
    (model / "model.safetensors").unlink()
    opened = open_checkpoint(model, cache=cache)
    assert json.loads((opened.directory / "generation_config.json").read_text()) == {
        "eos_token_id": 5
    }


# The cache's directory


def test_the_cache_directory_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", f"{tmp_path}")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_root() == tmp_path / ".cache" / CACHE_NAME
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")  # the specification ignores it
    assert default_root() == tmp_path / ".cache" / CACHE_NAME
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/caches")
    assert default_root() == tmp_path / "caches" / CACHE_NAME


def test_the_cache_is_private_with_any_umask(model, cache):
    before = os.umask(0)
    try:
        load(model, cache)
    finally:
        os.umask(before)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert (
        (cache / "CACHEDIR.TAG")
        .read_text()
        .startswith("Signature: 8a477f597d28d172789f06886806bc55")
    )


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_directory_that_others_may_write_to_is_refused(model, cache, mode):
    cache.mkdir()
    cache.chmod(mode)
    with pytest.raises(UserError, match=f"{cache}: others may write there .*chmod go-w"):
        load(model, cache)


def test_a_key_covers_all_that_determines_the_bytes(model):
    """A key depends on each element of a tensor, its place in the slice, format and layout."""
    from dataclasses import replace

    from models.demos.qwen25_7b.loading.tiles import digest_of, key_of
    from models.demos.qwen25_7b.weights import Constant, WeightShard, Projection, TensorRange

    a, b = torch.arange(64.0).view(8, 8), torch.arange(64.0).view(8, 8)
    b[0, 0], b[0, 1] = 1, 0  # two values exchanged
    part = Projection(0, (TensorRange("w", 0, 4), Constant(4)), 8)
    shard = WeightShard(part, "bfloat8_b", True)
    others = [
        replace(shard, format="bfloat4_b"),
        replace(shard, tiled=False),
        *(
            replace(shard, slice=changed)
            for changed in (
                replace(part, split_dim=1),
                replace(part, blocks=part.blocks[::-1]),
                replace(part, blocks=(TensorRange("w", 4, 4), Constant(4))),
                replace(part, blocks=(TensorRange("w", 0, 4, pairs=True), Constant(4))),
                replace(part, blocks=(TensorRange("w", 0, 4), Constant(4, 1.0))),
            )
        ),
    ]
    digests = [digest_of(t) for t in (a, b, a.flatten(), a.int(), a.bfloat16())]
    assert len(set(digests)) == len(digests)
    keys = [key_of(shard, lambda _: digest) for digest in digests]
    keys += [key_of(other, lambda _: digests[0]) for other in others]
    assert len(set(keys)) == len(keys)
    renamed = replace(shard, slice=replace(part, blocks=(TensorRange("v", 0, 4), Constant(4))))
    assert key_of(renamed, lambda _: digests[0]) == keys[0]

"""Changes of a checkpoint's files, and loads without a device: every shard of a model as sent to the chips."""

import json
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

import torch
import ttnn
from loguru import logger
from safetensors.torch import load_file, save_file

from models.demos.qwen25_7b.config import BFP8, Recipe
from models.demos.qwen25_7b.plans.slices import WeightShard
from models.demos.qwen25_7b.weights.cache import CACHE_NAME, open_checkpoint, packed_weights
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint
from tests.families import table_of

CONFIG, WEIGHTS = "config.json", "model.safetensors"
ABSENT = "absent"  # a field that a change takes away
Shards = dict[WeightShard, torch.Tensor]


def change(model: Path, file: str, fields) -> None:
    """fields: of a JSON file, tensors of a safetensors file (None takes one away), or a function of either."""
    path = model / file
    tensors = file.endswith(".safetensors")
    contents = load_file(path) if tensors else json.loads(path.read_text())
    contents = fields(contents) if callable(fields) else contents | fields
    path.unlink()  # of a mapped file
    if tensors:
        save_file({k: v.contiguous() for k, v in contents.items() if v is not None}, path)
    else:
        path.write_text(json.dumps({k: v for k, v in contents.items() if v is not ABSENT}))


def load(model: str | Path, cache: Path, *, tp: int = 2, recipe: Recipe = BFP8, revision: str | None = None) -> Shards:
    """Load all shards through the cache."""
    return shards_of(open_checkpoint(model, cache=cache, revision=revision), tp, recipe)


@contextmanager
def logged() -> Iterator[list[str]]:
    """Yields a list that gets the messages that the block logs."""
    lines = []
    sink = logger.add(lambda message: lines.append(message.record["message"]), level="INFO")
    try:
        yield lines
    finally:
        logger.remove(sink)


def shards_of(source, tp: int = 2, recipe: Recipe = BFP8) -> Shards:
    table = table_of(source.config, tp, recipe)
    build = packed_weights(source, table)
    return {shard: _values(build(shard)) for shard in table.shards}


def made(model: Path, *, tp: int = 2, recipe: Recipe = BFP8) -> Shards:
    """Build all shards from the checkpoint, without a cache."""
    return shards_of(Checkpoint.open(model), tp, recipe)


def _values(tensor: ttnn.Tensor) -> torch.Tensor:
    assert tensor.storage_type() == ttnn.StorageType.HOST
    return tensor.to_torch().clone()


def assert_same(got: Shards, expected: Shards) -> None:
    assert list(got) == list(expected)
    wrong = [shard.slice.tensors for shard in expected if not got[shard].equal(expected[shard])]
    assert not wrong, f"{len(wrong)} shards are wrong, the first of {wrong[0]}"


def packed(cache: Path) -> list[Path]:
    """Return the files of packed shards."""
    return sorted((cache / CACHE_NAME).glob("*/*.tensorbin"))


def unfinished(cache: Path) -> list[Path]:
    return list((cache / CACHE_NAME).glob("*/tmp-*"))

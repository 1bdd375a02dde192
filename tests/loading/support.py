"""Loads without a device: every shard of a model as sent to the chips."""

from pathlib import Path

import torch
import ttnn

from models.demos.qwen25_7b.config import BFP8, ParallelPlan, Recipe
from models.demos.qwen25_7b.loading.inventory import inventory
from models.demos.qwen25_7b.loading.load import loading
from models.demos.qwen25_7b.loading.opened import OpenedCheckpoint, open_checkpoint
from models.demos.qwen25_7b.weights import Checkpoint, DirectBuilder, WeightShard

Shards = dict[WeightShard, torch.Tensor]


class Messages(list):
    """The lines that a load prints. str() joins them for assertions."""

    def __str__(self) -> str:
        return "\n".join(self)


def load(
    model: Path, cache: Path, *, tp: int = 2, recipe: Recipe = BFP8, lines: list | None = None
) -> Shards:
    """Load all shards through the cache, as load_model does."""
    return load_opened(
        open_checkpoint(model, cache=cache, say=(Messages() if lines is None else lines).append),
        tp,
        recipe,
    )


def load_opened(opened: OpenedCheckpoint, tp: int = 2, recipe: Recipe = BFP8) -> Shards:
    plan = ParallelPlan.make(opened.config, tp)
    with loading(opened, opened.config, plan, recipe) as weights:
        return {
            shard: values(weights.builder.build(shard))
            for shard in inventory(opened.config, plan, recipe)
        }


def made(model: Path, *, tp: int = 2, recipe: Recipe = BFP8) -> Shards:
    """Build all shards from the checkpoint, without a cache."""
    checkpoint = Checkpoint.open(model)
    shards = inventory(checkpoint.config, ParallelPlan.make(checkpoint.config, tp), recipe)
    return {shard: values(DirectBuilder(checkpoint).build(shard)) for shard in shards}


def values(tensor: ttnn.Tensor) -> torch.Tensor:
    assert tensor.storage_type() == ttnn.StorageType.HOST
    return tensor.to_torch().clone()


def assert_same(got: Shards, expected: Shards) -> None:
    assert list(got) == list(expected)
    wrong = [shard.slice.tensors for shard in expected if not got[shard].equal(expected[shard])]
    assert not wrong, f"{len(wrong)} shards are wrong, the first of {wrong[0]}"


def tiles(cache: Path) -> list[Path]:
    return sorted(cache.glob("tiles/*/*"))


def leftovers(cache: Path) -> list[Path]:
    """Return the cache's temporary and partial files."""
    return [*cache.glob("tmp/*"), *cache.rglob("*.part")]

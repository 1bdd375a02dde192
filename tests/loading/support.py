"""Loads without a device: every piece of a model as the chips would get it."""

from pathlib import Path

import torch
import ttnn

from models.demos.qwen25_7b.config import BFP8, ParallelPlan, Recipe
from models.demos.qwen25_7b.loading.inventory import inventory
from models.demos.qwen25_7b.loading.load import loading
from models.demos.qwen25_7b.loading.opened import OpenedCheckpoint, open_checkpoint
from models.demos.qwen25_7b.weights import Checkpoint, Packing, Piece

Pieces = dict[Piece, torch.Tensor]


class Said(list):
    """What a load says, line by line; joined for assertions."""

    def __str__(self) -> str:
        return "\n".join(self)


def load(model: Path, cache: Path, *, tp: int = 2, recipe: Recipe = BFP8, said: list | None = None) -> Pieces:
    """Through the cache, as load_model does it."""
    return load_opened(open_checkpoint(model, cache=cache, say=(Said() if said is None else said).append), tp, recipe)


def load_opened(opened: OpenedCheckpoint, tp: int = 2, recipe: Recipe = BFP8) -> Pieces:
    plan = ParallelPlan.make(opened.config, tp)
    with loading(opened, opened.config, plan, recipe) as weights:
        return {piece: values(weights.pieces.host(piece)) for piece in inventory(opened.config, plan, recipe)}


def made(model: Path, *, tp: int = 2, recipe: Recipe = BFP8) -> Pieces:
    """The same from the checkpoint alone."""
    checkpoint = Checkpoint.open(model)
    pieces = inventory(checkpoint.config, ParallelPlan.make(checkpoint.config, tp), recipe)
    return {piece: values(Packing(checkpoint).host(piece)) for piece in pieces}


def values(tensor: ttnn.Tensor) -> torch.Tensor:
    assert tensor.storage_type() == ttnn.StorageType.HOST
    return tensor.to_torch().clone()


def assert_same(got: Pieces, wanted: Pieces) -> None:
    assert list(got) == list(wanted)
    wrong = [piece.part.tensors for piece in wanted if not got[piece].equal(wanted[piece])]
    assert not wrong, f"{len(wrong)} pieces are wrong, the first of {wrong[0]}"


def tiles(cache: Path) -> list[Path]:
    return sorted(cache.glob("tiles/*/*"))


def leftovers(cache: Path) -> list[Path]:
    """Files that are neither whole tiles nor what describes them."""
    return [*cache.glob("tmp/*"), *cache.rglob("*.part")]

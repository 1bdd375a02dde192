"""The model that is evaluated: its checkpoint, and its replicas on a machine's chips."""

import argparse
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Optional, Sequence

from models.demos.qwen25_7b.config import DecoderConfig, Recipe
from models.demos.qwen25_7b.engine.host_memory import check_host_memory
from models.demos.qwen25_7b.plans.machines import Split, machine
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS, SPLITS, ParallelPlan
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.text.tokenizer import ChatTokenizer
from models.demos.qwen25_7b.tt.mesh import backend_name, command_queues, select_backend
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint

from .smollm2 import cached_smollm2

TP_DEFAULT = "(default: as many as the model can be split over)"


def add_model(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--model", metavar="NAME|DIR", help='directory, hub id or "smollm2" (default: the small checkpoint)'
    )


@dataclass(frozen=True)
class EvaluatedModel:
    name: str
    checkpoint: Checkpoint

    @classmethod
    def open(cls, model: Optional[str]) -> "EvaluatedModel":
        """model: a directory, a hub id or "smollm2"; None: the small checkpoint."""
        if model is None:
            return cls("small checkpoint", Checkpoint.open(SMALL_CHECKPOINT))
        if model == "smollm2":
            return cls("SmolLM2-135M-Instruct", Checkpoint.open(cached_smollm2()))
        return cls(Path(model).name, Checkpoint.open(model))

    @property
    def directory(self) -> Path:
        return self.checkpoint.directory

    @property
    def config(self) -> DecoderConfig:
        return self.checkpoint.config

    def tokenizer(self):
        return ChatTokenizer(self.directory, instruct=False).hf


def file_states(checkpoint: Checkpoint) -> list[tuple[str, int, int]]:
    """Names, sizes and times of the checkpoint's weight files: other ones, other weights."""
    files = sorted({header.file for header in checkpoint.headers.values()})
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def split_for(config: DecoderConfig, mesh: str, tp: Optional[int]) -> Split:
    """mesh: a machine's name. tp: default as many chips as the model's KV heads can be split over."""
    if tp is None:
        row, kv_heads = machine(mesh).row, config.num_key_value_heads
        tp = max(n for n in SPLITS if row % n == 0 and ParallelPlan.deals_out(kv_heads, n))
    split = Split.of(mesh, tp)
    ParallelPlan.make(config, tp)  # UserError: the model cannot be split over tp chips
    return split


def choose_backend(
    backend: str, split: Split, config: DecoderConfig, recipes: Sequence[Recipe], *, texts: int, max_seq_len: int
) -> str:
    """Select what is below ttnn, which must happen before ttnn is imported. Returns its name.

    UserError: without a card this host is too small for one of the recipes.
    """
    selected = select_backend(backend, split.kind.name)
    replicas, users = _loaded(split.dp, texts)
    for recipe in recipes:
        check_host_memory(selected, config, split, recipe, replicas=replicas, users=users, max_seq_len=max_seq_len)
    return backend_name(selected)


def _loaded(devices: int, texts: int) -> tuple[int, int]:
    """Replicas that `texts` texts at a time need, and their users."""
    count = min(devices, -(-texts // MAX_USERS))
    return count, min(texts, MAX_USERS * count)


@contextmanager
def replicas_on(
    devices: list, checkpoint: Checkpoint, recipe: Recipe, *, texts: int, max_seq_len: int, queues: Optional[int] = None
) -> Iterator[list]:
    """Load the Replicas that `texts` texts at a time need, one on each device. queues: of the devices, by default all.

    On exit the devices' memory is free again, for a model with another recipe.
    """
    from models.demos.qwen25_7b.engine.replica import load_replicas

    count, users = _loaded(len(devices), texts)
    sizes = dict(users=users, max_seq_len=max_seq_len, queues=queues or command_queues())
    replicas = load_replicas(devices[:count], checkpoint, recipe, **sizes)
    try:
        yield replicas
    finally:
        for replica in replicas:
            replica.close()
        del replicas[:], replica
        for device in devices[:count]:
            # Cached collectives keep semaphores in L1, where the next model needs the room.
            device.clear_program_cache()

"""The model that is evaluated: its checkpoint, and its replicas on a machine's chips."""

import argparse
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Optional

from ..config import QwenConfig, Recipe
from ..plans.machines import MachineKind, check_tp, machine
from ..plans.parallel_plan import MAX_USERS, SPLITS, ParallelPlan
from ..reference.small import SMALL_CHECKPOINT
from ..text.tokenizer import ChatTokenizer
from ..tt.mesh import command_queues, describe_backend, open_replicas, select_backend, traces_available
from ..weights.checkpoint import Checkpoint
from .smollm2 import cached_smollm2


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
    def config(self) -> QwenConfig:
        return self.checkpoint.config

    def tokenizer(self):
        return ChatTokenizer(self.directory, instruct=False).hf


@dataclass(frozen=True)
class Split:
    """A machine and its tensor parallelism: tp chips hold a replica, and dp replicas run side by side."""

    kind: MachineKind
    tp: int

    @classmethod
    def of(cls, mesh: str, config: QwenConfig, tp: Optional[int]) -> "Split":
        """mesh: a machine's name. tp: None for as many chips as the model's KV heads can be split over."""
        kind = machine(mesh)
        if tp is None:
            shares = [n for n in SPLITS if kind.row % n == 0]
            tp = max(n for n in shares if ParallelPlan.deals_out(config.num_key_value_heads, n))
        check_tp(kind.name, tp)
        ParallelPlan.make(config, tp)  # UserError: the model cannot be split over tp chips
        return cls(kind, tp)

    @property
    def dp(self) -> int:
        return self.kind.chips // self.tp

    def __str__(self) -> str:
        return f"{self.kind.name}, tp {self.tp} x dp {self.dp}"

    def select_backend(self, backend: str) -> str:
        """Select what is below ttnn, which must happen before ttnn is imported. Returns its name."""
        return describe_backend(select_backend(backend, self.kind.name)).split(" (")[0]

    @contextmanager
    def open(self) -> Iterator[list]:
        """Open the replicas' mesh devices, each a row of tp chips."""
        with open_replicas(self.kind.name, self.tp, queues=command_queues()) as devices:
            yield devices


@contextmanager
def replicas_on(
    devices: list, checkpoint: Checkpoint, recipe: Recipe, *, texts: int, max_seq_len: int, queues: int
) -> Iterator[list]:
    """Load the Replicas that `texts` texts at a time need, one on each device. Replicas return logits.

    On exit the devices' memory is free again, for a model with another recipe.
    """
    from ..engine.replica import Replica

    count = min(len(devices), -(-texts // MAX_USERS))
    batch = min(MAX_USERS, -(-texts // count))
    how = dict(users=batch, max_seq_len=max_seq_len, traced=traces_available(), queues=queues)
    replicas = [Replica.load(device, checkpoint, checkpoint.config, recipe, **how) for device in devices[:count]]
    try:
        yield replicas
    finally:
        for replica in replicas:
            replica.close()
        del replicas[:], replica
        for device in devices[:count]:
            # Cached collectives keep semaphores in L1, where the next model needs the room.
            device.clear_program_cache()

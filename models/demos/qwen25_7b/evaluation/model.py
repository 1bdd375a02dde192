"""The model that is evaluated: its checkpoint, and its replicas on a machine's chips."""

import argparse
import gc
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Optional

from models.common.machines import MachineKind, check_tp, machine
from models.common.mesh import (
    command_queues,
    describe_backend,
    open_replicas,
    select_backend,
    traces_available,
)
from models.common.options import add_machine as add_mesh
from models.demos.qwen25_7b.config import MAX_USERS, SPLITS, ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.evaluation.smollm2 import (
    SMOLLM2,
    SMOLLM2_4BIT,
    cached_smollm2,
    cached_smollm2_4bit,
)
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.tokenizer import ChatTokenizer
from models.demos.qwen25_7b.weights import Checkpoint


def add_model(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--model",
        metavar="NAME|DIR",
        help='directory, hub id, "smollm2" or "smollm2-4bit" (default: the small checkpoint)',
    )


def add_machine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("machine")
    add_mesh(group)
    group.add_argument(
        "--tp",
        type=int,
        metavar="N",
        help="chips of a replica (default: as many as the model can be split over)",
    )


@dataclass(frozen=True)
class EvaluatedModel:
    name: str
    checkpoint: Checkpoint

    @classmethod
    def open(cls, model: Optional[str]) -> "EvaluatedModel":
        """model: a directory, a hub id, "smollm2" or "smollm2-4bit"; None: the small checkpoint."""
        if model is None:
            return cls("small checkpoint", Checkpoint.open(SMALL_CHECKPOINT))
        if model == SMOLLM2:
            return cls("SmolLM2-135M-Instruct", Checkpoint.open(cached_smollm2()))
        if model == SMOLLM2_4BIT:
            return cls("SmolLM2-135M-Instruct-4bit", Checkpoint.open(cached_smollm2_4bit()))
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
    def from_options(cls, args: argparse.Namespace, config: QwenConfig) -> "Split":
        """The split that the options of `add_machine` describe."""
        return cls.of(machine(args.mesh), config, args.tp)

    @classmethod
    def of(cls, kind: MachineKind, config: QwenConfig, tp: Optional[int]) -> "Split":
        """tp: None for as many chips as the model's KV heads can be split over."""
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
    devices: list,
    checkpoint: Checkpoint,
    recipe: Recipe,
    *,
    texts: int,
    max_seq_len: int,
    queues: int,
) -> Iterator[list]:
    """Load the Replicas that `texts` texts at a time need, one on each device. Replicas return logits.

    On exit the devices' memory is free again, for a model with another recipe.
    """
    from models.demos.qwen25_7b.serving.replica import Replica

    count = min(len(devices), -(-texts // MAX_USERS))
    batch = min(MAX_USERS, -(-texts // count))
    how = dict(users=batch, max_seq_len=max_seq_len, traced=traces_available(), queues=queues)
    replicas = [
        Replica.load(device, checkpoint, checkpoint.config, recipe, **how)
        for device in devices[:count]
    ]
    try:
        yield replicas
    finally:
        for replica in replicas:
            replica.close()
        del replicas[:], replica
        gc.collect()  # a replica and its steps refer to each other
        for device in devices[:count]:
            # Cached collectives keep semaphores in L1, where the next model needs the room.
            device.clear_program_cache()

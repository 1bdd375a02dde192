"""The model that is judged: its checkpoint, and replicas of it on a machine's chips."""

import gc
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Optional

from models.common.mesh import MachineKind, check_tp, command_queues, open_replicas, traces_available
from models.demos.qwen25_7b.config import MAX_USERS, ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.evaluation.smollm2 import SMOLLM2, cached_smollm2
from models.demos.qwen25_7b.evaluation.smollm2_4bit import SMOLLM2_4BIT, cached_smollm2_4bit
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.text import Text
from models.demos.qwen25_7b.weights import Checkpoint


@dataclass(frozen=True)
class Subject:
    name: str
    checkpoint: Checkpoint

    @classmethod
    def open(cls, model: Optional[str]) -> "Subject":
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
        return Text(self.directory, instruct=False).tokenizer


@dataclass(frozen=True)
class Split:
    """A machine, and how many of its chips share a replica of the model."""

    kind: MachineKind
    tp: int

    @classmethod
    def of(cls, kind: MachineKind, config: QwenConfig, tp: Optional[int]) -> "Split":
        """tp: None for as many chips as can share the model's KV heads."""
        if tp is None:
            shares = [n for n in (1, 2, 4, 8) if kind.chips % n == 0]
            tp = max(n for n in shares if ParallelPlan.deals_out(config.num_key_value_heads, n))
        check_tp(kind.name, tp)
        ParallelPlan.make(config, tp)  # says why, if the model cannot be split so
        return cls(kind, tp)

    @property
    def dp(self) -> int:
        return self.kind.chips // self.tp

    def __str__(self) -> str:
        return f"{self.kind.name}, tp {self.tp} x dp {self.dp}"

    @contextmanager
    def open(self) -> Iterator[list]:
        """The replicas' mesh devices, each a row of tp chips."""
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
    """As many Replicas, each on a device of its own, as `texts` texts at a time keep busy; they give logits.

    Afterwards the devices are as they were, so that a model with another recipe finds its room.
    """
    from models.demos.qwen25_7b.serving.replica import Replica

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
        gc.collect()  # a replica and its steps know each other, so that their tensors outlive the names
        for device in devices[:count]:
            device.clear_program_cache()  # whose collectives keep semaphores where the next model's L1 tensors would lie

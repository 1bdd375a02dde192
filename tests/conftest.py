"""Fixtures of several folders: the small checkpoint, its tokenizer, Hugging Face's model, replicas."""

import pytest
import torch

from models.demos.qwen25_7b.config import BF16
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.text.tokenizer import ChatTokenizer
from models.demos.qwen25_7b.tt.mesh import traces_available
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint


@pytest.fixture(scope="session")
def checkpoint() -> Checkpoint:
    return Checkpoint.open(SMALL_CHECKPOINT)


@pytest.fixture(scope="session")
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer(SMALL_CHECKPOINT, instruct=True)


@pytest.fixture(scope="session")
def hf():
    """Hugging Face's model of the small checkpoint in float32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(SMALL_CHECKPOINT, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def replica_of(mesh_device, checkpoint, queues):
    """replica_of(users, max_seq_len, **options): a Replica of the small checkpoint.

    The default recipe is bf16.
    """
    from models.demos.qwen25_7b.engine.replica import Replica

    def replica_of(users, max_seq_len, recipe=BF16, **options):
        options = dict(traced=traces_available(), queues=queues) | options
        return Replica.load(
            mesh_device,
            checkpoint,
            checkpoint.config,
            recipe,
            users=users,
            max_seq_len=max_seq_len,
            **options,
        )

    return replica_of

"""Fixtures of several folders: the small checkpoint, its tokenizer, Hugging Face's model, replicas, prompts."""

import weakref

import pytest
import torch

from models.demos.qwen25_7b.config import BF16
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.text.tokenizer import ChatTokenizer
from models.demos.qwen25_7b.tt.mesh import traces_available
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint

CAPITALS = "France Japan Italy Spain Egypt Peru Canada Kenya Norway Cuba India China".split()
QUESTIONS = (
    *(f"What is the capital of {country}?" for country in CAPITALS),
    *(f"Count from {n} to {n + 12}." for n in range(2, 14)),
    *(f"Spell the word {w}." for w in "banana house garden window apple river".split()),
    *(f"What is {a} + {b}?" for a, b in ((7, 5), (3, 4), (9, 8), (2, 6), (5, 5), (8, 1))),
    "Name the planets.",
    "What are the days of the week?",
    "Name the months of the year.",
    "Tell a story about teacher Tom, doctor Anna and a fox.",
)


@pytest.fixture(scope="session", autouse=True)
def caches_elsewhere(tmp_path_factory):
    """Keep the user's caches untouched."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", f"{tmp_path_factory.mktemp('caches')}")
        yield


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
    """replica_of(users, max_seq_len, **options): a Replica, closed after the module's tests. Without a checkpoint it is
    the small one's.
    """
    from models.demos.qwen25_7b.engine.replica import Replica

    alive = weakref.WeakSet()

    def replica_of(users, max_seq_len, recipe=BF16, checkpoint=checkpoint, **options):
        options = dict(users=users, max_seq_len=max_seq_len, traced=traces_available(), queues=queues) | options
        replica = Replica.load(mesh_device, checkpoint, checkpoint.config, recipe, **options)
        alive.add(replica)
        return replica

    yield replica_of
    for replica in alive:
        replica.close()


@pytest.fixture
def recorder(mesh_device, pytestconfig, monkeypatch):
    """Records the device operations of the test's own process, as `perf run` does."""
    if pytestconfig.backend != "golden":
        pytest.skip("perf run records a golden mesh")
    from golden_mesh.mesh import dispatch
    from qwen25_7b_lab.prices.recorder import Recorder, recording

    from golden_mesh import sections

    recorder = Recorder()
    monkeypatch.setattr(dispatch, "REAL_CALL", recording(dispatch.REAL_CALL, recorder))
    yield recorder
    sections.times.clear()


@pytest.fixture(scope="session")
def prompts(tokenizer) -> list[list[int]]:
    """48 prompts of 13 to about 350 tokens: one question, or several in a row."""
    short = [tokenizer.encode(question) for question in QUESTIONS]
    return short + [sum(short[i : i + 2 + 3 * i], []) for i in range(48 - len(short))]


@pytest.fixture(scope="session")
def tight(prompts) -> list[list[int]]:
    """12 prompts of nearly a block each. Each request needs another block during its answer.

    prompts[17] begins none of them. Its answer has a near tie: Hugging Face's two best tokens are 0.018 apart.
    A preempted request is prefilled again in another batch, and bfloat16's rounding there may choose the other token.
    """
    return [sum(prompts[i : i + 4], []) for i in range(10, 23) if i != 17]

"""Every split of a machine gives Hugging Face's tokens: replicas of tp chips, on all chips."""

import pytest

from models.demos.qwen25_7b.config import PERFORMANCE
from models.demos.qwen25_7b.engine.generator import Generator
from models.demos.qwen25_7b.engine.replica import Replica
from models.demos.qwen25_7b.tt.mesh import traces_available
from tests.generation import generate, greedy

NEW_TOKENS = 8
PROMPTS = [
    "What is the capital of France?",
    "Count from 9 to 30.",
    "Spell the word banana.",
    "What is the capital of Japan?",
    "Name the planets.",
    "What is 7 + 5?",
    "Name the months of the year.",
    "What is 9 + 8?",
    "Tell a story about teacher Tom, doctor Anna and a fox.",
]  # one more than a T3K has chips: one of eight replicas has two users


@pytest.fixture(scope="module")
def prompts(tokenizer) -> list[list[int]]:
    return [tokenizer.encode(prompt) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def replicas(replica_devices, checkpoint, queues) -> list[Replica]:
    users = [len(range(i, len(PROMPTS), len(replica_devices))) for i in range(len(replica_devices))]
    model, options = (checkpoint, checkpoint.config, PERFORMANCE), dict(traced=traces_available(), queues=queues)
    return [
        Replica.load(device, *model, users=n, max_seq_len=96, **options) for device, n in zip(replica_devices, users)
    ]


@pytest.mark.galaxy
def test_all_replicas_together_give_hugging_faces_text(replicas, prompts, tokenizer, hf):
    generator = Generator(replicas)
    answers = generate(generator, prompts, NEW_TOKENS, stop_ids=tokenizer.stop_ids)
    generator.close()
    assert answers == [greedy(hf, prompt, NEW_TOKENS, tokenizer.stop_ids) for prompt in prompts]


def test_all_replicas_are_launched_before_the_first_is_read(replicas, prompts, monkeypatch):
    """Otherwise a machine with eight replicas would be as slow as with one."""
    order = []

    def watched(name: str):
        real = getattr(Replica, name)
        return lambda self, *work: (order.append(name), real(self, *work))[1]

    for name in ("prefill", "launch_decode", "read_tokens"):
        monkeypatch.setattr(Replica, name, watched(name))
    generator, count = Generator(replicas), len(replicas)
    prompts = prompts[:count]  # one a replica, so one prefill batch a replica
    generate(generator, prompts, 1)
    assert order == ["prefill"] * count + ["read_tokens"] * count
    order.clear()
    generate(generator, prompts, 2)
    generator.close()
    assert order[2 * count :] == ["launch_decode"] * count + ["read_tokens"] * count

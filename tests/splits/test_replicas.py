"""Every split of a machine gives Hugging Face's text: tp chips a replica, as many replicas as there are chips for."""

import pytest
import torch

from models.common.mesh import traces_available
from models.demos.qwen25_7b.config import BF16, PERFORMANCE
from models.demos.qwen25_7b.reference.hf import hf_model
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.generator import Generator
from models.demos.qwen25_7b.serving.replica import Replica
from models.demos.qwen25_7b.serving.text import Text
from models.demos.qwen25_7b.weights import Checkpoint
from models.demos.qwen25_7b.weights.checkpoint import tensor_shapes

NEW_TOKENS = 24
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
]  # one more than a T3K has chips, so that with eight replicas one has two users


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return Checkpoint.open(SMALL_CHECKPOINT)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    text = Text(SMALL_CHECKPOINT, instruct=True)
    return [text.encode(prompt) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def expected(checkpoint, prompts) -> list[list[int]]:
    """Greedy tokens of Hugging Face in float32."""
    config = checkpoint.config
    model = hf_model(config, {name: checkpoint.tensor(name) for name in tensor_shapes(config)})
    texts = []
    for prompt in prompts:
        whole = list(prompt)
        while len(whole) < len(prompt) + NEW_TOKENS:
            with torch.no_grad():
                whole.append(int(model(torch.tensor([whole])).logits[0, -1].argmax()))
            if whole[-1] in config.eos_token_ids:
                break
        texts.append(whole[len(prompt) :])
    return texts


@pytest.fixture(scope="module", params=(BF16, PERFORMANCE), ids=lambda recipe: recipe.name)
def replicas(request, replica_devices, checkpoint, queues) -> list[Replica]:
    config, made = checkpoint.config, []
    count = len(replica_devices)
    for i, device in enumerate(replica_devices):
        users = len(range(i, len(PROMPTS), count))
        made.append(
            Replica.load(
                device,
                checkpoint,
                config,
                request.param,
                users=users,
                max_seq_len=96,
                traced=traces_available(),
                queues=queues,
            )
        )
    return made


def test_all_replicas_together_write_what_hugging_face_writes(replicas, prompts, expected, checkpoint):
    generator = Generator(replicas)
    texts = [[] for _ in prompts]
    for token in generator.generate(prompts, NEW_TOKENS, stop_ids=set(checkpoint.config.eos_token_ids)):
        texts[token.user].append(token.id)
    generator.close()
    assert texts == expected


def test_all_replicas_are_under_way_before_the_first_is_read(replicas, prompts):
    """Otherwise a machine of eight replicas would be as slow as one."""
    order = []

    class Watched(Replica):
        def __init__(self, replica: Replica):  # the same model, inputs and trace
            self.__dict__ = replica.__dict__

        def prefill(self, work) -> None:
            order.append("prefill")
            super().prefill(work)

        def launch(self) -> None:
            order.append("launch")
            super().launch()

        def read(self) -> list[int]:
            order.append("read")
            return super().read()

    watched = [Watched(replica) for replica in replicas]
    for _ in Generator(watched).generate(prompts, 1):
        pass
    assert order == ["prefill"] * len(replicas) + ["read"] * len(replicas), "prompts of a replica take one pass"
    order.clear()
    for _ in Generator(watched).generate(prompts, 2):
        pass
    Generator(watched).close()
    assert order[2 * len(replicas) :] == ["launch"] * len(replicas) + ["read"] * len(replicas)

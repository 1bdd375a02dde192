"""How often decode's first choice is the reference's, and among its first five, for every recipe.

    pytest tests/accuracy --mesh N300 --model Qwen/Qwen2.5-7B-Instruct [--reference FILE.refpt]

The reference is Hugging Face in float32 on this repository's held-out text, or what a file says about the file's own text.
Without --model the small checkpoint is judged on a few answers.
"""

from pathlib import Path

import pytest

from models.demos.qwen25_7b.config import RECIPES
from models.demos.qwen25_7b.evaluation.judge import agreement, judge_decode
from models.demos.qwen25_7b.evaluation.reference import HuggingFace
from models.demos.qwen25_7b.evaluation.refpt import Reference
from models.demos.qwen25_7b.evaluation.subject import Subject, replicas_on
from models.demos.qwen25_7b.evaluation.texts import sample

SMALL_FLOORS = 0.985, 1.0  # top-1, top-5
FLOORS = 0.84, 0.96  # the lower ends of what ports of Qwen2.5-7B publish (84-94 %, 96-99 %)


@pytest.fixture(scope="module")
def model(pytestconfig):
    return pytestconfig.getoption("--model")


@pytest.fixture(scope="module")
def subject(model) -> Subject:
    return Subject.open(model)


@pytest.fixture(scope="module")
def judge(subject, model, pytestconfig):
    """judge(replicas) -> (top-1, top-5, tokens); judge.texts and judge.longest say what it takes."""
    file = pytestconfig.getoption("--reference")
    return ByFile(Path(file), subject) if file else ByHuggingFace(subject, texts=32 if model else 4)


class ByFile:
    def __init__(self, file: Path, subject: Subject):
        self.reference = Reference.load(file, subject.config.vocab_size)
        self.texts, self.longest = len(self.reference.texts()), len(self.reference.tokens)

    def __call__(self, replicas) -> tuple[float, float, int]:
        got = agreement(replicas, self.reference)
        return got.top1, got.top5, got.tokens


class ByHuggingFace:
    def __init__(self, subject: Subject, texts: int):
        self.sample = sample(subject.tokenizer(), subject.directory, None, count=texts, beginning=32, steps=64)
        self.reading = HuggingFace(subject.directory).read(self.sample.texts)
        self.texts, self.longest = texts, len(self.sample.texts[0])

    def __call__(self, replicas) -> tuple[float, float, int]:
        got = judge_decode(replicas, self.sample, self.reading, lambda tokens: None).summary()
        return got.top1, got.top5, got.tokens


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_decode_chooses_as_the_reference(replica_devices, queues, subject, judge, model, mesh_name, recipe, publish):
    options = dict(texts=judge.texts, max_seq_len=judge.longest, queues=queues)
    with replicas_on(replica_devices, subject.checkpoint, recipe, **options) as replicas:
        top1, top5, tokens = judge(replicas)
    publish(f"{subject.name}, {mesh_name}, {recipe.name}: top-1 {top1:.2%}, top-5 {top5:.2%} of {tokens} tokens")
    floor1, floor5 = FLOORS if model else SMALL_FLOORS
    assert top1 >= floor1 and top5 >= floor5

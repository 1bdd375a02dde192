"""Top-1 and top-5 agreement of decode with a reference, for every recipe. Command:

    pytest tests/accuracy --mesh N300 --model Qwen/Qwen2.5-7B-Instruct [--reference FILE.refpt]

- The reference is Hugging Face in float32 on this repository's held-out text.
- With --reference, predictions and text come from the file.
- Without --model the small checkpoint is scored on a few answers.
"""

from pathlib import Path

import pytest
import torch
from qwen25_7b_lab.evaluation import readiness
from qwen25_7b_lab.evaluation.divergence import score_decode
from qwen25_7b_lab.evaluation.model import EvaluatedModel, replicas_on
from qwen25_7b_lab.evaluation.reference import HuggingFace
from qwen25_7b_lab.evaluation.texts import sample

from models.demos.qwen25_7b.config import RECIPES
from tests.accuracy.reference_file import Reference, agreement

SMALL_FLOORS = 0.985, 1.0  # top-1, top-5
FLOORS = 0.84, 0.96  # lower ends of published ports of Qwen2.5-7B (84-94 %, 96-99 %)


@pytest.fixture(scope="module")
def model(pytestconfig):
    return pytestconfig.getoption("--model")


@pytest.fixture(scope="module")
def evaluated(model) -> EvaluatedModel:
    return EvaluatedModel.open(model)


@pytest.fixture(scope="module")
def judge(evaluated, model, pytestconfig):
    """judge(replicas) -> (top-1, top-5, tokens).

    judge.texts is the number of sequences, judge.longest their largest length.
    """
    file = pytestconfig.getoption("--reference")
    if not file:
        return ByHuggingFace(evaluated, texts=32 if model else 4)
    return (ByEntries if "entries" in torch.load(file, weights_only=True) else ByFile)(Path(file), evaluated)


class ByFile:
    def __init__(self, file: Path, evaluated: EvaluatedModel):
        self.reference = Reference.load(file, evaluated.config.vocab_size)
        self.texts, self.longest = len(self.reference.texts()), len(self.reference.tokens)

    def __call__(self, replicas) -> tuple[float, float, int]:
        return agreement(replicas, self.reference)


class ByEntries:
    """A file of tt-metal's readiness check."""

    def __init__(self, file: Path, evaluated: EvaluatedModel):
        self.entries = readiness.load_entries(file, evaluated.config.vocab_size)
        self.texts, self.longest = len(self.entries), max(len(entry.text.ids) for entry in self.entries)

    def __call__(self, replicas) -> tuple[float, float, int]:
        tokens, shares = readiness.agreement(replicas, self.entries)
        return shares[1], shares[5], tokens


class ByHuggingFace:
    def __init__(self, evaluated: EvaluatedModel, texts: int):
        self.sample = sample(evaluated.tokenizer(), evaluated.directory, None, count=texts, prompt_length=32, steps=64)
        self.reading = HuggingFace(evaluated.directory).read(self.sample.texts)
        self.texts, self.longest = texts, len(self.sample.texts[0])

    def __call__(self, replicas) -> tuple[float, float, int]:
        got = score_decode(replicas, self.sample, self.reading).summary()
        return got["top1"], got["top5"], got["tokens"]


@pytest.mark.make_test_on("N300")
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_decode_predicts_the_references_tokens(
    replica_devices, queues, evaluated, judge, model, mesh_name, recipe, publish
):
    options = dict(texts=judge.texts, max_seq_len=judge.longest, queues=queues)
    with replicas_on(replica_devices, evaluated.checkpoint, recipe, **options) as replicas:
        top1, top5, tokens = judge(replicas)
    publish(f"{evaluated.name}, {mesh_name}, {recipe.name}: top-1 {top1:.2%}, top-5 {top5:.2%} of {tokens} tokens")
    floor1, floor5 = FLOORS if model else SMALL_FLOORS
    assert top1 >= floor1 and top5 >= floor5

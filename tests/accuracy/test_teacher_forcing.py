"""Top-1 and top-5 agreement of decode with a reference, for every recipe. Command:

    pytest tests/accuracy --mesh N300 --model Qwen/Qwen2.5-7B-Instruct [--reference FILE.refpt]

- The reference is Hugging Face in float32 on this repository's held-out text.
- With --reference, predictions and text come from the file.
- Without --model the small checkpoint is scored on a few answers.
"""

from pathlib import Path

import pytest
import torch
from qwen25_7b_lab.evaluation.divergence import score_decode
from qwen25_7b_lab.evaluation.model import EvaluatedModel, replicas_on
from qwen25_7b_lab.evaluation.readiness import Entry, agreement, load_entries
from qwen25_7b_lab.evaluation.reference import HuggingFace
from qwen25_7b_lab.evaluation.texts import ForcedText, sample

from models.demos.qwen25_7b.config import RECIPES

SMALL_FLOORS = 0.985, 1.0  # top-1, top-5
FLOORS = 0.84, 0.96  # lower ends of published ports of Qwen2.5-7B (84-94 %, 96-99 %)
LONGEST = 1024  # tokens; the writer of tt_transformers starts a new context after 1024


@pytest.fixture(scope="module")
def model(pytestconfig):
    return pytestconfig.getoption("--model")


@pytest.fixture(scope="module")
def evaluated(model) -> EvaluatedModel:
    return EvaluatedModel.open(model)


@pytest.fixture(scope="module")
def judged(evaluated, model, pytestconfig):
    """(judge(replicas) -> (top-1, top-5, tokens), number of sequences, their largest length)"""
    if file := pytestconfig.getoption("--reference"):
        entries = entries_of(Path(file), evaluated.config.vocab_size)

        def by_file(replicas) -> tuple[float, float, int]:
            tokens, shares = agreement(replicas, entries)
            return shares[1], shares[5], tokens

        return by_file, len(entries), max(len(entry.text.ids) for entry in entries)

    texts = 32 if model else 4
    asked = sample(evaluated.tokenizer(), evaluated.directory, None, count=texts, prompt_length=32, steps=64)
    reading = HuggingFace(evaluated.directory).read(asked.texts)

    def by_hugging_face(replicas) -> tuple[float, float, int]:
        got = score_decode(replicas, asked, reading).summary()
        return got["top1"], got["top5"], got["tokens"]

    return by_hugging_face, texts, len(asked.texts[0])


def entries_of(file: Path, vocab_size: int) -> list[Entry]:
    """The entries of tt-metal's readiness check, or the second half of a text of tt_transformers' accuracy test.

    In a file of tt_transformers, row i of top5_tokens has the five most likely successors of token i, best first.
    """
    contents = torch.load(file, weights_only=True)
    if "reference_tokens" not in contents or "entries" in contents:
        return load_entries(file, vocab_size)
    ids = contents["reference_tokens"][0, :LONGEST].tolist()
    half = len(ids) // 2
    return [Entry(ForcedText(ids, half), contents["top5_tokens"][half - 1 : len(ids) - 1])]


@pytest.mark.make_test_on("N300")
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_decode_predicts_the_references_tokens(
    replica_devices, queues, evaluated, judged, model, mesh_name, recipe, capsys
):
    judge, texts, longest = judged
    options = dict(texts=texts, max_seq_len=longest, queues=queues)
    with replicas_on(replica_devices, evaluated.checkpoint, recipe, **options) as replicas:
        top1, top5, tokens = judge(replicas)
    with capsys.disabled():
        print(f"\n{evaluated.name}, {mesh_name}, {recipe.name}: top-1 {top1:.2%}, top-5 {top5:.2%} of {tokens} tokens")
    floor1, floor5 = FLOORS if model else SMALL_FLOORS
    assert top1 >= floor1 and top5 >= floor5

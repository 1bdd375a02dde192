"""A model on a mesh against Hugging Face, over a sample of texts."""

from dataclasses import dataclass
from typing import Callable, Iterable, Sequence

import torch

from models.demos.qwen25_7b.evaluation.forcing import Expected, forced, prefilled
from models.demos.qwen25_7b.evaluation.reference import Reading
from models.demos.qwen25_7b.evaluation.refpt import Reference
from models.demos.qwen25_7b.evaluation.score import Score, compare
from models.demos.qwen25_7b.evaluation.texts import ForcedText, Sample
from models.demos.qwen25_7b.serving.replica import Replica

Progress = Callable[[int], None]  # called with the number of tokens that were judged


@dataclass(frozen=True)
class Agreement:
    """Shares of the judged tokens."""

    top1: float
    top5: float
    tokens: int

    def __str__(self) -> str:
        return f"top-1 {self.top1:.2%}, top-5 {self.top5:.2%} of {self.tokens} tokens"


def judge_decode(replicas: Sequence[Replica], sample: Sample, reading: Reading, progress: Progress) -> Score:
    """What decode steps expect; a prompt's own last token is prefill's, and not among them."""
    texts = [ForcedText(ids, sample.beginning) for ids in sample.texts]
    return _judged(forced(replicas, texts), sample, reading, progress)


def judge_prefill(replica: Replica, sample: Sample, reading: Reading, progress: Progress) -> Score:
    """What prefill expects after the same tokens."""
    texts = [ForcedText(ids, sample.beginning + 1) for ids in sample.texts]
    return _judged(prefilled(replica, texts), sample, reading, progress)


def _judged(stream: Iterable[Expected], sample: Sample, reading: Reading, progress: Progress) -> Score:
    judged = [frozenset(places) for places in sample.judged]
    parts = []
    for expected in stream:
        rows = [row for row, (text, at) in enumerate(zip(expected.texts, expected.positions)) if at in judged[text]]
        if rows:
            parts.append(_score(expected.of(rows), sample, reading))
            progress(len(rows))
    return Score.join(parts)


def _score(expected: Expected, sample: Sample, reading: Reading) -> Score:
    following = [sample.texts[text][at + 1] for text, at in zip(expected.texts, expected.positions)]
    reference = reading.logits(expected.texts, expected.positions)
    return compare(expected.logits, reference, torch.tensor(following))


def agreement(replicas: Sequence[Replica], reference: Reference) -> Agreement:
    """How often the first choice of decode steps is the reference's, and among its five, over the second half."""
    first, among = [], []
    texts = reference.texts()
    for expected in forced(replicas, texts):
        choices = expected.logits.float().argmax(-1)
        for text, at, choice in zip(expected.texts, expected.positions, choices):
            if at >= texts[text].beginning:  # what the prompt's last token leads to is prefill's
                first.append(bool(choice == reference.top5[at, 0]))
                among.append(bool((choice == reference.top5[at]).any()))
    return Agreement(sum(first) / len(first), sum(among) / len(among), len(first))

"""The divergence of a model's predictions from Hugging Face's, token by token. Logarithms are natural: nats."""

from dataclasses import dataclass, fields
from typing import Iterable, Sequence

import torch
from tqdm import tqdm

from .reference import Reading
from .texts import ForcedText, Sample


@dataclass(frozen=True)
class Score:
    """One value for each scored token."""

    kl: torch.Tensor  # KL(reference || ours)
    rank: torch.Tensor  # our first choice's place among the reference's choices, from 0
    nll: torch.Tensor  # -log of the probability that we give the text's next token
    reference_nll: torch.Tensor  # -log of the reference's probability

    def __len__(self) -> int:
        return len(self.kl)

    @classmethod
    def join(cls, parts: list["Score"]) -> "Score":
        return cls(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def top(self, count: int) -> float:
        """The share of tokens at which our first choice is among the reference's first `count`."""
        return float((self.rank < count).double().mean())

    def summary(self) -> dict[str, float]:
        """Over all tokens. top1, top5 and top100 are shares of 1."""
        median, high = self.kl.quantile(torch.tensor([0.5, 0.99], dtype=self.kl.dtype)).tolist()
        return {
            "tokens": len(self),
            "kl_mean": float(self.kl.mean()),
            "kl_error": float(self.kl.std(correction=0)) / len(self) ** 0.5,  # the mean's standard error
            "kl_median": median,
            "kl_99th_percentile": high,
            "kl_max": float(self.kl.max()),
            "top1": self.top(1),
            "top5": self.top(5),
            "top100": self.top(100),
            "nll": float(self.nll.mean()),
            "reference_nll": float(self.reference_nll.mean()),
        }


def compare(logits: torch.Tensor, reference: torch.Tensor, following: torch.Tensor) -> Score:
    """logits, reference: [tokens, vocab_size]. following: [tokens], the next token in the text."""
    ours, theirs = (x.double().log_softmax(-1) for x in (logits, reference))
    best = ours.argmax(-1, keepdim=True)
    return Score(
        # The sum over 150,000 words is -1e-17 where the two distributions are equal.
        kl=(theirs.exp() * (theirs - ours)).sum(-1).clamp_min(0),
        rank=(theirs > theirs.gather(-1, best)).sum(-1),
        nll=-ours.gather(-1, following[:, None])[:, 0],
        reference_nll=-theirs.gather(-1, following[:, None])[:, 0],
    )


def score_decode(replicas: Sequence, sample: Sample, reading: Reading) -> Score:
    """Score decode steps. The prediction after a prompt's last token is prefill's and does not count."""
    from .teacher_forcing import predict_with_decode

    texts = [ForcedText(ids, sample.prompt_length) for ids in sample.texts]
    return _score(predict_with_decode(replicas, texts), sample, reading)


def score_along(replica, sample: Sample, reading: Reading) -> Score:
    """Score decode steps through the part of one text that is scored."""
    from .teacher_forcing import predict_along

    (ids,) = sample.texts
    return _score(predict_along(replica, ids, sample.prompt_length), sample, reading)


def score_prefill(replica, sample: Sample, reading: Reading) -> Score:
    """Score prefill at the positions that score_decode scores."""
    from .teacher_forcing import predict_with_prefill

    texts = [ForcedText(ids, sample.prompt_length + 1) for ids in sample.texts]
    return _score(predict_with_prefill(replica, texts), sample, reading)


def score_reading(ours: Reading, sample: Sample, reading: Reading) -> Score:
    """Score one of Hugging Face's readings against another."""
    parts = []
    for text, positions in enumerate(sample.scored):
        if positions:
            places = [text] * len(positions), positions
            following = torch.tensor([sample.texts[text][at + 1] for at in positions])
            parts.append(compare(ours.logits(*places), reading.logits(*places), following))
    return Score.join(parts)


def _score(predictions: Iterable, sample: Sample, reading: Reading) -> Score:
    scored = [frozenset(positions) for positions in sample.scored]
    parts = []
    with tqdm(total=sample.tokens, desc="scored tokens", leave=False, disable=None) as bar:
        for prediction in predictions:
            places = list(zip(prediction.texts, prediction.positions))
            rows = [row for row, (text, position) in enumerate(places) if position in scored[text]]
            if rows:
                texts, positions = zip(*(places[row] for row in rows))
                following = [sample.texts[text][position + 1] for text, position in zip(texts, positions)]
                reference = reading.logits(texts, positions)
                parts.append(compare(prediction.logits[rows], reference, torch.tensor(following)))
                bar.update(len(rows))
    return Score.join(parts)

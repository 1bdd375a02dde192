"""How far a model's expectations are from the reference's, token by token. Logarithms are natural: nats."""

from dataclasses import dataclass, fields

import torch


@dataclass(frozen=True)
class Score:
    """Of judged tokens, one value a token each."""

    kl: torch.Tensor  # KL(reference || ours)
    top1: torch.Tensor  # whether our first choice is the reference's
    top5: torch.Tensor  # whether our first choice is among the reference's first five
    nll: torch.Tensor  # -log of the probability that we give the text's next token
    reference_nll: torch.Tensor  # the same of the reference

    def __len__(self) -> int:
        return len(self.kl)

    @classmethod
    def join(cls, parts: list["Score"]) -> "Score":
        return cls(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def summary(self) -> "Summary":
        middle, high = self.kl.quantile(torch.tensor([0.5, 0.99], dtype=self.kl.dtype)).tolist()
        return Summary(
            tokens=len(self),
            kl_mean=float(self.kl.mean()),
            kl_median=middle,
            kl_99th_percentile=high,
            kl_max=float(self.kl.max()),
            top1=float(self.top1.double().mean()),
            top5=float(self.top5.double().mean()),
            nll=float(self.nll.mean()),
            reference_nll=float(self.reference_nll.mean()),
        )


@dataclass(frozen=True)
class Summary:
    """Over all tokens of a Score; agreements are shares."""

    tokens: int
    kl_mean: float
    kl_median: float
    kl_99th_percentile: float
    kl_max: float
    top1: float
    top5: float
    nll: float
    reference_nll: float


def compare(logits: torch.Tensor, reference: torch.Tensor, following: torch.Tensor) -> Score:
    """logits, reference: [tokens, vocab_size]. following: [tokens], what each token's successor really is."""
    ours, theirs = (x.double().log_softmax(-1) for x in (logits, reference))
    best = ours.argmax(-1, keepdim=True)
    return Score(
        # A sum over 150,000 words leaves -1e-17 where both say the same.
        kl=(theirs.exp() * (theirs - ours)).sum(-1).clamp_min(0),
        top1=best[:, 0] == theirs.argmax(-1),
        top5=(theirs.topk(5).indices == best).any(-1),
        nll=-ours.gather(-1, following[:, None])[:, 0],
        reference_nll=-theirs.gather(-1, following[:, None])[:, 0],
    )

"""Choosing the next token from logits, on the host."""
from dataclasses import dataclass
from typing import Optional

import torch

from models.common.errors import UserError


@dataclass(frozen=True)
class Sampling:
    """temperature 0 is greedy. top_k 0 and top_p 1 keep every token. seed None: different at every run."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: Optional[int] = None

    def __post_init__(self):
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature must be 0 (greedy) or more, got {self.temperature}")
        if self.top_k < 0:
            raise UserError(f"top_k must be 0 (all tokens) or more, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if self.seed is not None and not 0 <= self.seed < 1 << 32:
            raise UserError(f"seed must be 0 to {(1 << 32) - 1}, got {self.seed}")


class HostSampler:
    """One random stream a user, so that a user's text does not depend on who else is in the batch."""

    def __init__(self, sampling: Sampling, users: int):
        self.sampling = sampling
        self.streams = [torch.Generator() for _ in range(users)]
        for user, stream in enumerate(self.streams):
            if sampling.seed is None:
                stream.seed()
            else:
                stream.manual_seed(sampling.seed + user)

    def __call__(self, user: int, logits: torch.Tensor) -> int:
        """logits: [vocab_size] of one user, any float dtype."""
        logits = logits.float()
        if self.sampling.temperature == 0:
            return int(logits.argmax())
        probabilities = torch.softmax(filtered(logits / self.sampling.temperature, self.sampling), dim=-1)
        return int(torch.multinomial(probabilities, 1, generator=self.streams[user]))


def filtered(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Logits [vocab_size] with -inf wherever top-k, then top-p, leave a token out."""
    if 0 < sampling.top_k < logits.shape[-1]:
        kept = torch.full_like(logits, -torch.inf)
        values, tokens = logits.topk(sampling.top_k)
        logits = kept.scatter(-1, tokens, values)
    if sampling.top_p < 1:
        values, tokens = logits.sort(descending=True)
        probabilities = values.softmax(dim=-1)
        beyond = probabilities.cumsum(dim=-1) - probabilities >= sampling.top_p  # the first token is never beyond
        logits = logits.scatter(-1, tokens, values.masked_fill(beyond, -torch.inf))
    return logits

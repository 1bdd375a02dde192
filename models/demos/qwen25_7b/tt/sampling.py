"""How a next token is chosen, on the host: the options, the noise, and the choice itself. TtSampler does the same on the chips.

A token is drawn by the Gumbel trick: the largest of (logit / temperature + noise) is distributed as softmax says. Noise
comes from the host, a stream a user, so the same seed gives the same text wherever the choice is made.
"""

from dataclasses import dataclass
from typing import NamedTuple, Optional, Sequence

import torch

from models.common.errors import UserError

CANDIDATES = 32  # tokens that the chips choose from: the most likely ones, a tile's width
NEVER = -1e30  # added to a score: no logit makes up for it, and unlike -inf it makes no NaN


@dataclass(frozen=True)
class Sampling:
    """temperature 0 is greedy. top_k 0 and top_p 1 keep every token. seed None: different at every run."""

    temperature: float = 0.0
    top_k: int = CANDIDATES
    top_p: float = 1.0
    seed: Optional[int] = None

    def __post_init__(self):
        if self.temperature != 0 and not 1e-3 <= self.temperature < float("inf"):
            raise UserError(f"temperature must be 0 (greedy) or 0.001 or more, got {self.temperature}")
        if self.top_k < 0:
            raise UserError(f"top_k must be 0 (all tokens) or more, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if self.seed is not None and not 0 <= self.seed < 1 << 32:
            raise UserError(f"seed must be 0 to {(1 << 32) - 1}, got {self.seed}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def check_on_device(self) -> None:
        """UserError unless TtSampler can do it."""
        if not self.greedy and not 1 <= self.top_k <= CANDIDATES:
            raise UserError(
                f"the chips sample among the {CANDIDATES} most likely tokens: top_k must be 1 to {CANDIDATES}, got "
                f"{self.top_k}: sample on the host for more (--sample-on host)"
            )


GREEDY = Sampling()


class Noise:
    """One random stream a user, so that a user's text does not depend on who else is in the batch."""

    def __init__(self, samplings: Sequence[Sampling], streams: Optional[Sequence[int]] = None):
        """streams: which stream of its seed each user draws from; default: user u from stream u."""
        self.samplings = list(samplings)
        self.streams = [torch.Generator() for _ in self.samplings]
        for stream, sampling, number in zip(
            self.streams, self.samplings, streams or range(len(samplings)), strict=True
        ):
            if sampling.seed is None:
                stream.seed()
            else:
                stream.manual_seed(sampling.seed + number)

    def draw(self, user: int, tokens: int = CANDIDATES) -> torch.Tensor:
        """[tokens] float32, Gumbel distributed, the likeliest candidate's first; zeros for a greedy user."""
        if self.samplings[user].greedy:
            return torch.zeros(tokens)
        return -torch.empty(tokens).exponential_(generator=self.streams[user]).log()


class RowControls(NamedTuple):
    """What a user's options mean for its row of candidates, float32."""

    inverse_temperature: float
    allowed: torch.Tensor  # [candidates]: 0 where top-k keeps a candidate, NEVER where not
    top_p: float

    @classmethod
    def of(cls, sampling: Sampling, candidates: int = CANDIDATES) -> "RowControls":
        kept = 1 if sampling.greedy else sampling.top_k or candidates
        allowed = torch.zeros(candidates)
        allowed[kept:] = NEVER
        # 2: rounding may take the sum of all probabilities past 1, which is to keep everything
        return cls(
            1.0 if sampling.greedy else 1 / sampling.temperature, allowed, sampling.top_p if sampling.top_p < 1 else 2
        )


class HostSampler:
    """Chooses from a user's logits as TtSampler does; top_k may be 0 or any number here."""

    def __init__(self, samplings: Sequence[Sampling], streams: Optional[Sequence[int]] = None):
        self.noise = Noise(samplings, streams)

    def __call__(self, user: int, logits: torch.Tensor) -> int:
        """logits: [vocab_size] of one user, any float dtype. Of equal logits, the lowest token comes first."""
        sampling, logits = self.noise.samplings[user], logits.float()
        if sampling.greedy:
            return int(logits.argmax())
        count = len(logits) if not 1 <= sampling.top_k <= CANDIDATES else min(CANDIDATES, len(logits))
        values, tokens = logits.sort(descending=True, stable=True)
        return int(tokens[pick(values[:count], RowControls.of(sampling, count), self.noise.draw(user, count))])


def pick(values: torch.Tensor, controls: RowControls, noise: torch.Tensor) -> int:
    """Which of the candidates [n], largest first, is drawn. Op for op what TtSampler does to a row."""
    scaled = values * torch.tensor(controls.inverse_temperature) + controls.allowed
    probabilities = scaled.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    dropped = (before >= torch.tensor(controls.top_p)).float()  # never the first: nothing is before it
    return int((scaled + noise + dropped * NEVER).argmax())

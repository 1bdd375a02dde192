"""How a user wants next tokens chosen, and what that means for a row of candidates on the chips and on the host."""

from dataclasses import dataclass
from typing import NamedTuple, Optional, Sequence

import torch

from models.common.errors import UserError

SEEDS = 1 << 32  # that a user may give
CANDIDATES = 32  # tokens that the chips choose from: the most likely ones, a tile's width
MOST_COUNTED = 256  # of a token in an answer: the chips count in bfloat16, where 256 + 1 is 256
NEVER = -1e30  # added to a score: no logit makes up for it, and unlike -inf it makes no NaN


@dataclass(frozen=True)
class Sampling:
    """temperature 0 is greedy. top_k 0 and top_p 1 keep every token. seed None: different at every run.

    Penalties change logits before anything else, for greedy rows too. repetition_penalty, as HF's generate has it: a logit of
    a token that the prompt or the answer has is divided by it, or multiplied where it is negative. presence_penalty and
    frequency_penalty, as OpenAI and vLLM have them: taken off once, and as often as the answer has the token.
    """

    temperature: float = 0.0
    top_k: int = CANDIDATES
    top_p: float = 1.0
    seed: Optional[int] = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    def __post_init__(self):
        if self.temperature != 0 and not 1e-3 <= self.temperature < float("inf"):
            raise UserError(f"temperature must be 0 (greedy) or 0.001 or more, got {self.temperature}")
        if self.top_k < 0:
            raise UserError(f"top_k must be 0 (all tokens) or more, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if self.seed is not None and not 0 <= self.seed < SEEDS:
            raise UserError(f"seed must be 0 to {SEEDS - 1}, got {self.seed}")
        if not 0 < self.repetition_penalty < float("inf"):
            raise UserError(f"repetition_penalty must be above 0 (1: none), got {self.repetition_penalty}")
        for name in ("presence_penalty", "frequency_penalty"):
            if not abs(getattr(self, name)) < float("inf"):
                raise UserError(f"{name} must be a number (0: none), got {getattr(self, name)}")

    @property
    def penalised(self) -> bool:
        """Whether what was written changes what is written next."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def on_device(self) -> bool:
        """Whether TtSampler can do it; else the host chooses."""
        return self.greedy or 1 <= self.top_k <= CANDIDATES


GREEDY = Sampling()


class Seen(NamedTuple):
    """What a text has so far, which is what penalties are about."""

    prompt: Sequence[int] = ()
    answer: Sequence[int] = ()


class PenaltyFactors(NamedTuple):
    """What a user's penalties do to a logit, as numbers that are 0 where there is none."""

    positive: float  # times a positive logit of a token that was seen, added to it
    negative: float  # times a negative one's size, taken off it
    frequency: float  # taken off as often as the answer has the token, up to MOST_COUNTED times
    presence: float  # taken off if it has it

    @classmethod
    def of(cls, sampling: Sampling) -> "PenaltyFactors":
        penalty = sampling.repetition_penalty
        return cls(1 / penalty - 1, penalty - 1, sampling.frequency_penalty, sampling.presence_penalty)


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

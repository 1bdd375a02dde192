"""Sampling parameters of a sequence."""

from dataclasses import dataclass
from typing import Optional

from ..errors import UserError, check_integer, check_number

SEEDS = 1 << 32  # that a user may give
CANDIDATES = 32  # tokens that the chips sample from: the most likely ones, a tile's width
COLDEST = 1e-3  # the lowest temperature above 0
# Bounds of penalties: a logit that one of these changes stays a finite float32.
SMALLEST_FACTOR, LARGEST_PENALTY = 1e-30, 1e30
_LEAST = dict(repetition_penalty=SMALLEST_FACTOR, presence_penalty=-LARGEST_PENALTY, frequency_penalty=-LARGEST_PENALTY)


@dataclass(frozen=True)
class SamplingParams:
    """temperature 0 is greedy. top_k 0 and top_p 1 keep every token. seed None: different at every run.

    Penalties change the logits first, also in greedy slots.

    - repetition_penalty, as in HF's generate, is for tokens of the prompt and the answer. It divides a positive
      logit and multiplies a negative one.
    - presence_penalty, as in OpenAI and vLLM, is subtracted once for a token of the answer.
    - frequency_penalty, as in OpenAI and vLLM, is subtracted for each occurrence in the answer.
    """

    temperature: float = 0.0
    top_k: int = CANDIDATES
    top_p: float = 1.0
    seed: Optional[int] = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    def __post_init__(self):
        for name in ("temperature", "top_p", *_LEAST):
            check_number(name, getattr(self, name))
        if self.temperature != 0 and self.temperature < COLDEST:
            raise UserError(f"temperature must be 0 (greedy) or {COLDEST} or more, got {self.temperature}")
        check_integer("top_k", self.top_k, 0)  # 0: all tokens
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if self.seed is not None:
            check_integer("seed", self.seed, 0, SEEDS - 1)
        for name, least in _LEAST.items():
            if not least <= getattr(self, name) <= LARGEST_PENALTY:
                raise UserError(f"{name} must be {least} to {LARGEST_PENALTY}, got {getattr(self, name)}")

    @property
    def penalized(self) -> bool:
        """Whether what was written changes what is written next."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    @property
    def counts_answer(self) -> bool:
        """Whether a penalty depends on where the prompt ends."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def full(self) -> bool:
        """Whether any token of the vocabulary may be sampled."""
        return not self.greedy and self.top_k == 0 and self.top_p == 1

    @property
    def on_device(self) -> bool:
        """Whether TtSampler supports these parameters. Otherwise the host samples."""
        return self.greedy or self.full or 1 <= self.top_k <= CANDIDATES


GREEDY = SamplingParams()

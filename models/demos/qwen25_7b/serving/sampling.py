"""How a next token is chosen, on the host: the noise, and the choice itself. TtSampler does the same on the chips.

A token is drawn by the Gumbel trick: the largest of (logit / temperature + noise) is distributed as softmax says. Noise
comes from the host, a stream a user, so the same seed gives the same text wherever the choice is made.
"""

from typing import Optional, Sequence

import torch

from models.demos.qwen25_7b.config.sampling import CANDIDATES, NEVER, RowControls, Sampling


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

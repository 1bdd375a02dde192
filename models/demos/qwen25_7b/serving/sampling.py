"""How a next token is chosen, on the host. TtSampler does the same on the chips.

A token is drawn by the Gumbel trick: the largest of (logit / temperature + noise) is distributed as softmax says. Noise
comes from the host (noise.py), so the same seed gives the same text wherever the choice is made.
"""

import torch

from models.demos.qwen25_7b.config.sampling import (
    CANDIDATES,
    MOST_COUNTED,
    NEVER,
    PenaltyFactors,
    RowControls,
    Sampling,
    Seen,
)
from models.demos.qwen25_7b.serving.noise import gumbel


def choose(logits: torch.Tensor, sampling: Sampling, key: int, position: int, seen: Seen = Seen()) -> int:
    """The token at `position` of a user's text, as TtSampler chooses it; top_k may be 0 or any number here.

    logits: [vocab_size], any float dtype; of equal ones, the lowest token comes first. key: noise.stream_key of the user.
    """
    logits = logits.float()
    if sampling.penalised:
        logits = penalised(logits, sampling, seen).bfloat16().float()  # as topk takes them on the chips
    if sampling.greedy:
        return int(logits.argmax())
    count = len(logits) if not 1 <= sampling.top_k <= CANDIDATES else min(CANDIDATES, len(logits))
    values, tokens = logits.sort(descending=True, stable=True)
    return int(tokens[pick(values[:count], RowControls.of(sampling, count), gumbel([key], [position], count)[0])])


def penalised(logits: torch.Tensor, sampling: Sampling, seen: Seen) -> torch.Tensor:
    """[vocab_size] float32 -> the same with the penalties of `sampling` for what was seen. Op for op what TtPenalties does."""
    by = [torch.tensor(factor) for factor in PenaltyFactors.of(sampling)]
    positive, negative, frequency, presence = by
    there = torch.zeros_like(logits)
    there[[*seen.prompt, *seen.answer]] = 1
    counts = torch.tensor(list(seen.answer), dtype=torch.long).bincount(minlength=len(logits)).clamp(max=MOST_COUNTED)
    old = logits * there
    changed = old.relu() * positive - (-old).relu() * negative + logits
    return changed - counts * frequency - (counts > 0) * presence


def pick(values: torch.Tensor, controls: RowControls, noise: torch.Tensor) -> int:
    """Which of the candidates [n], largest first, is drawn. Op for op what TtSampler does to a row."""
    scaled = values * torch.tensor(controls.inverse_temperature) + controls.allowed
    probabilities = scaled.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    dropped = before >= torch.tensor(controls.top_p)  # never the first: nothing is before it
    return int(torch.where(dropped, NEVER, scaled + noise).argmax())

"""How a next token is chosen, on the host. TtSampler does the same on the chips.

A token is drawn by the Gumbel trick: the largest of (logit / temperature + noise) is distributed as softmax says. Noise
comes from the host (noise.py), so the same seed gives the same text wherever the choice is made.
"""

from typing import NamedTuple, Sequence

import torch

from models.demos.qwen25_7b.config.sampling import CANDIDATES, NEVER, RowControls, Sampling
from models.demos.qwen25_7b.serving.noise import gumbel


class Seen(NamedTuple):
    """What a text has so far, which is what penalties are about."""

    prompt: Sequence[int] = ()
    answer: Sequence[int] = ()


def choose(logits: torch.Tensor, sampling: Sampling, key: int, position: int, seen: Seen = Seen()) -> int:
    """The token at `position` of a user's text, as TtSampler chooses it; top_k may be 0 or any number here.

    logits: [vocab_size], any float dtype; of equal ones, the lowest token comes first. key: noise.stream_key of the user.
    """
    logits = penalised(logits.float(), sampling, seen)
    if sampling.greedy:
        return int(logits.argmax())
    count = len(logits) if not 1 <= sampling.top_k <= CANDIDATES else min(CANDIDATES, len(logits))
    values, tokens = logits.sort(descending=True, stable=True)
    return int(tokens[pick(values[:count], RowControls.of(sampling, count), gumbel([key], [position], count)[0])])


def penalised(logits: torch.Tensor, sampling: Sampling, seen: Seen) -> torch.Tensor:
    """[vocab_size] float32 -> the same with the penalties of `sampling` for what was seen, in vLLM's order."""
    if not sampling.penalised:
        return logits
    tokens = torch.tensor([*seen.prompt, *seen.answer], dtype=torch.long).unique()
    counts = torch.tensor(list(seen.answer), dtype=torch.long).bincount(minlength=len(logits))
    changed, old = logits.clone(), logits[tokens]
    penalty = torch.tensor(sampling.repetition_penalty)
    changed[tokens] = torch.where(old > 0, old / penalty, old * penalty)
    return changed - counts * sampling.frequency_penalty - (counts > 0) * sampling.presence_penalty


def pick(values: torch.Tensor, controls: RowControls, noise: torch.Tensor) -> int:
    """Which of the candidates [n], largest first, is drawn. Op for op what TtSampler does to a row."""
    scaled = values * torch.tensor(controls.inverse_temperature) + controls.allowed
    probabilities = scaled.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    dropped = before >= torch.tensor(controls.top_p)  # never the first: nothing is before it
    return int(torch.where(dropped, NEVER, scaled + noise).argmax())

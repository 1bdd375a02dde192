"""Sampling on the host, the noise of random sampling, and the chips' sampling modes.

A token is sampled with the Gumbel trick: the largest (logit / temperature + noise) is distributed as the
softmax says. The noise is a function of (seed, position). So a seeded sequence gets the same tokens in any
slot and batch, on the chips or on the host, and after a preemption.
"""

import secrets
from enum import Enum
from typing import Optional, Sequence

import numpy as np
import torch

from models.demos.qwen25_7b.config.sampling import (
    CANDIDATES,
    MOST_COUNTED,
    NEVER,
    SEEDS,
    PenaltyFactors,
    RowControls,
    SamplingParams,
    TokenCounts,
)

# SplitMix64 (Steele, Lea and Flood, 2014): a step of the counter, and the mixing of its bits
_STEP, _FIRST, _SECOND = (
    np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


class SamplingMode(Enum):
    """How a step samples all its slots. Each mode has a trace, captured at its first use."""

    GREEDY = "the largest logit"
    RANDOM = "temperature, top-k and top-p of each slot; greedy slots too"
    PENALIZED = "RANDOM on logits with the penalties of each slot"

    @classmethod
    def of(cls, params: Sequence[SamplingParams]) -> "SamplingMode":
        """Return the cheapest mode that all these parameters allow."""
        if any(p.penalized for p in params):
            return cls.PENALIZED
        return cls.GREEDY if all(p.greedy for p in params) else cls.RANDOM


def stream_key(seed: Optional[int]) -> int:
    """Return the key of a sequence's noise: its seed, or a random number above all seeds."""
    return SEEDS + secrets.randbelow((1 << 64) - SEEDS) if seed is None else seed


def gumbel(keys: Sequence[int], positions: Sequence[int], count: int) -> torch.Tensor:
    """Return Gumbel noise [sequences, count] float32 for the `count` largest logits, largest first.

    keys: each sequence's stream_key. positions: of the token to sample, 0 being a sequence's first.
    The noise of a candidate does not depend on count.
    """
    rows = _mixed(_mixed(np.array(keys, dtype=np.uint64)) ^ np.array(positions, dtype=np.uint64))
    bits = _mixed(rows[:, None] + np.arange(count, dtype=np.uint64) * _STEP)
    uniform = ((bits >> np.uint64(11)) + 0.5) * 2.0**-53  # 53 bits, never 0 or 1
    return torch.from_numpy(-np.log(-np.log(uniform))).float()


def _mixed(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # it counts modulo 2**64
        x = x + _STEP
        x = (x ^ (x >> np.uint64(30))) * _FIRST
        x = (x ^ (x >> np.uint64(27))) * _SECOND
        return x ^ (x >> np.uint64(31))


def sample(
    logits: torch.Tensor,
    params: SamplingParams,
    key: int,
    position: int,
    counts: TokenCounts = TokenCounts(),
) -> int:
    """Return the token at `position` as TtSampler samples it. Here top_k may be 0 or any number.

    Of equal logits the lowest token comes first.
    logits: [vocab_size], any float dtype. key: the sequence's stream_key.
    """
    logits = logits.float()
    if params.penalized:
        # bfloat16, as topk reads the penalized logits on the chips
        logits = penalize(logits, params, counts).bfloat16().float()
    if params.greedy:
        return int(logits.argmax())
    count = len(logits) if not 1 <= params.top_k <= CANDIDATES else min(CANDIDATES, len(logits))
    values, tokens = logits.sort(descending=True, stable=True)
    noise = gumbel([key], [position], count)[0]
    return int(tokens[sample_candidate(values[:count], RowControls.of(params, count), noise)])


def penalize(logits: torch.Tensor, params: SamplingParams, counts: TokenCounts) -> torch.Tensor:
    """Return logits [vocab_size] float32 with the penalties, op for op as TtPenalties.forward."""
    factors = [torch.tensor(factor) for factor in PenaltyFactors.of(params)]
    positive, negative, frequency, presence = factors
    seen = torch.zeros_like(logits)
    seen[[*counts.prompt, *counts.answer]] = 1
    answer = torch.tensor(list(counts.answer), dtype=torch.long)
    in_answer = answer.bincount(minlength=len(logits)).clamp(max=MOST_COUNTED)
    old = logits * seen
    changed = old.relu() * positive - (-old).relu() * negative + logits
    return changed - in_answer * frequency - (in_answer > 0) * presence


def sample_candidate(values: torch.Tensor, controls: RowControls, noise: torch.Tensor) -> int:
    """Return the index of the sampled candidate, op for op as TtSampler. values: [n], largest first."""
    scaled = values * torch.tensor(controls.inverse_temperature) + controls.allowed
    probabilities = scaled.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    dropped = before >= torch.tensor(controls.top_p)  # never the first: its sum before is 0
    return int(torch.where(dropped, NEVER, scaled + noise).argmax())

"""Random numbers for drawing tokens: a function of (seed, position of the token to be drawn), and of nothing else.

So a seeded text is the same in any row of the batch, in any company and order, on the chips and on the host, and when it is
taken up again in its middle.
"""

import secrets
from typing import Optional, Sequence

import numpy as np
import torch

from models.demos.qwen25_7b.config.sampling import SEEDS

# SplitMix64 (Steele, Lea and Flood, 2014): a step of the counter, and the mixing of its bits
_STEP, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def stream_key(seed: Optional[int]) -> int:
    """What a user's draws depend on besides positions: the seed, or, where none was given, a number above all seeds, which nobody
    else has."""
    return SEEDS + secrets.randbelow((1 << 64) - SEEDS) if seed is None else seed


def gumbel(keys: Sequence[int], positions: Sequence[int], count: int) -> torch.Tensor:
    """[users, count] float32, Gumbel distributed: for each user the noise of its `count` likeliest tokens, likeliest first.

    keys: stream_key of each user. positions: where in its text the token stands that is to be drawn, 0 being the first.
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

"""Sampling on the host, the noise of random sampling, and the chips' sampling modes.

A token is sampled with the Gumbel trick: the largest (logit / temperature + noise) is distributed as the softmax says.
The noise is a function of (seed, position). So a seeded sequence gets the same tokens in any slot and batch, and after
a preemption. With top-k of 1 to 32, host and chips use the same noise. Without top-k and top-p they do not.
"""

import secrets
from enum import Enum
from math import isfinite, isnan
from typing import Mapping, NamedTuple, Optional, Sequence

import numpy as np
import torch

from ..config.sampling import CANDIDATES, SEEDS, SamplingParams
from ..plans.parallel_plan import MAX_USERS
from ..tt.inputs import MOST_COUNTED, NEVER, UNIFORMS, penalty_factors

# SplitMix64 (Steele, Lea and Flood, 2014): a step of the counter, and the mixing of its bits
_STEP, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
HEAD = 1024  # the most likely candidates: top_p mostly drops all others


class SamplingMode(Enum):
    """How a step samples all its slots. Each mode has a trace, captured at its first use."""

    GREEDY = "the largest logit"
    RANDOM = "temperature, top-k and top-p of each slot; greedy slots too"
    PENALIZED = "RANDOM on logits with the penalties of each slot"
    FULL = "PENALIZED, and slots without top-k and top-p sample from the whole vocabulary"

    @classmethod
    def of(cls, params: Sequence[SamplingParams]) -> "SamplingMode":
        """Return the cheapest mode that all these parameters allow."""
        if any(p.full for p in params):
            return cls.FULL
        if any(p.penalized for p in params):
            return cls.PENALIZED
        return cls.GREEDY if all(p.greedy for p in params) else cls.RANDOM


def stream_key(seed: Optional[int]) -> int:
    """Return the key of a sequence's noise: its seed, or a random number above all seeds."""
    return SEEDS + secrets.randbelow((1 << 64) - SEEDS) if seed is None else seed


def gumbel(keys: Sequence[int], positions: Sequence[int], count: int = CANDIDATES) -> torch.Tensor:
    """Return Gumbel noise [sequences, count] float32 for the `count` largest logits, largest first.

    keys: each sequence's stream_key. positions: of the token to sample, 0 being a sequence's first.
    The noise of a candidate does not depend on count.
    """
    uniform = ((_bits(keys, positions, count) >> np.uint64(11)) + 0.5) * 2.0**-53  # 53 bits, never 0 or 1
    return torch.from_numpy((-np.log(-np.log(uniform))).astype(np.float32))


def uniform(keys: Sequence[int], positions: Sequence[int], count: int = UNIFORMS) -> torch.Tensor:
    """Return numbers [sequences, count] float32 above 0 and below 1, for TtFullSampler. Arguments: as gumbel's."""
    numbers = ((_bits(keys, positions, count) >> np.uint64(41)) + 0.5) * 2.0**-23  # float32 has them exactly
    return torch.from_numpy(numbers.astype(np.float32))


def _bits(keys: Sequence[int], positions: Sequence[int], count: int) -> np.ndarray:
    """Return random bits [sequences, count] uint64. Arguments: as gumbel's."""
    starts = _mixed(_mixed(np.array(keys, dtype=np.uint64)) ^ np.array(positions, dtype=np.uint64))
    return _mixed(starts[:, None] + np.arange(count, dtype=np.uint64) * _STEP)


def _mixed(x: np.ndarray) -> np.ndarray:
    """Return 64 random bits of a counter. Changes x."""
    x += _STEP  # it counts modulo 2**64
    x ^= x >> np.uint64(30)
    x *= _FIRST
    x ^= x >> np.uint64(27)
    x *= _SECOND
    return x ^ (x >> np.uint64(31))


class TokenCounts(NamedTuple):
    """The token ids of a sequence so far, which penalties apply to: lists, or integer arrays or tensors."""

    prompt: Sequence[int] | np.ndarray | torch.Tensor = ()
    answer: Sequence[int] | np.ndarray | torch.Tensor = ()


class TokenTables:
    """`seen` and `counts` of TtPenalties, [1, 1, 32, columns] bfloat16 for all chips' columns.

    They are counted anew whenever sequences change slots, up to MOST_COUNTED.
    """

    def __init__(self, columns: int):
        shape = 1, 1, MAX_USERS, columns
        self.seen, self.counts = (torch.zeros(shape, dtype=torch.bfloat16) for _ in range(2))

    def update(self, sequences: Mapping[int, TokenCounts], *, occurrences: bool = True) -> None:
        """sequences: by slot. occurrences: False leaves `counts` as it is; only some penalties need it."""
        self.seen.zero_()
        if occurrences:
            self.counts.zero_()
        for slot, counts in sequences.items():
            prompt, answer = (torch.from_numpy(np.array(ids, dtype=np.int64)) for ids in counts)
            self.seen[0, 0, slot, prompt] = 1
            self.seen[0, 0, slot, answer] = 1
            if occurrences:
                tokens, times = answer.unique(return_counts=True)
                self.counts[0, 0, slot, tokens] = times.clamp(max=MOST_COUNTED).bfloat16()


class NextToken(NamedTuple):
    """A token to sample."""

    slot: int
    params: SamplingParams
    key: int  # its sequence's stream_key
    position: int  # in its sequence
    counts: TokenCounts = TokenCounts()  # may be empty where the chips count
    log_prob: bool = False  # whether vLLM wants its log-probability, before temperature and penalties


def sample_tokens(logits: torch.Tensor, next_tokens: Sequence[NextToken]) -> list[int]:
    """Each token as TtSampler samples it, for any top_k. Of equal logits the lowest token comes first.

    logits: [slots, vocab_size] bfloat16.
    """
    # One row at a time: a row fits the processor's cache.
    return [_sample_token(logits[t.slot], t) for t in next_tokens]


def _sample_token(logits: torch.Tensor, next_token: NextToken) -> int:
    params = next_token.params
    if params.penalized:
        logits = penalize(logits, params, next_token.counts)
    logits = logits.bfloat16() + 0.0  # as topk reads penalized logits on the chips; without -0
    if params.greedy:
        return int(logits.float().argmax())
    bits = logits.view(torch.int16).numpy().view(np.uint16)
    numbers, values, times = _distinct(bits)
    scaled = torch.from_numpy(values) * torch.tensor(1 / params.temperature)
    scores = np.repeat(scaled.numpy(), times)
    if not isfinite(scores[0]) or isnan(scores[-1]):  # the same with noise
        return int(logits.float().argmax())
    rank = _sample_rank(scores, next_token)
    at = np.searchsorted(times.cumsum(), rank, side="right")
    return int(np.flatnonzero(bits == numbers[at])[rank - times[:at].sum()])


def _distinct(bits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct bfloat16 numbers of a row, falling: their bits, float32 values, and how often the row has
    each.

    A row has few distinct numbers, so counting them is the fastest way to sort it. NaN is the first or the last.
    bits: [vocab_size] uint16.
    """
    times = np.bincount(bits, minlength=1 << 16)
    numbers = np.flatnonzero(times > 0)
    # Bits as an integer rise with the number above zero, and fall with it below zero.
    below_zero = np.searchsorted(numbers, 1 << 15)
    numbers = np.concatenate([numbers[:below_zero][::-1], numbers[below_zero:]])
    values = (numbers << 16).astype(np.uint32).view(np.float32)  # bfloat16 is float32's upper half
    return numbers, values, times[numbers]


def _sample_rank(scores: np.ndarray, next_token: NextToken) -> int:
    """The sampled candidate's rank, op for op as TtSampler. scores: logits / temperature, falling; written to."""
    params = next_token.params
    if 1 <= params.top_k <= CANDIDATES:
        scores = scores[:CANDIDATES]
    if params.top_k:
        scores[params.top_k :] += np.float32(NEVER)
    if params.top_p < 1:
        probabilities = torch.from_numpy(scores).softmax(dim=-1)
        for count in (HEAD, 16 * HEAD, len(scores)):
            before = probabilities[:count].cumsum(dim=-1) - probabilities[:count]
            if before[-1] > params.top_p + 1e-6:  # all later ones are, too: rounding is smaller
                break
        dropped = before >= torch.tensor(params.top_p)  # never the first: its sum before is 0
        scores = np.where(dropped, np.float32(NEVER), scores[:count])
    scores = scores[: params.top_k or None]
    noise = gumbel([next_token.key], [next_token.position], len(scores))[0].numpy()
    return int((scores + noise).argmax())


def log_prob(logits: torch.Tensor, token: int) -> float:
    """Return the token's log-probability. logits: [vocab_size] bfloat16."""
    wide = logits.float()
    largest = wide.max()
    difference = float(wide[token] - largest)
    return difference - float(wide.sub_(largest).exp_().sum().log())


def penalize(logits: torch.Tensor, params: SamplingParams, counts: TokenCounts) -> torch.Tensor:
    """Return logits [vocab_size] with the penalties, in their dtype; op for op as TtPenalties.forward."""
    positive, negative, frequency, presence = map(torch.tensor, penalty_factors(params))
    prompt, answer = (np.asarray(ids, dtype=np.int64) for ids in counts)
    answer, occurrences = np.unique(answer, return_counts=True)
    penalized = logits.clone()
    for ids, in_answer in ((prompt, np.zeros(1)), (answer, occurrences.clip(max=MOST_COUNTED))):
        tokens, in_answer = torch.from_numpy(ids), torch.from_numpy(in_answer).float()
        before = logits[tokens].float()
        changed = before.relu() * positive - (-before).relu() * negative + before
        changed = changed - in_answer * frequency - (in_answer > 0) * presence
        penalized[tokens] = changed.to(logits.dtype)  # an equal token gets an equal number
    return penalized

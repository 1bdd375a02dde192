"""vLLM's tensors and sampling parameters as a Replica takes them. Nothing here raises: that would end the engine."""

from dataclasses import dataclass, field
from functools import lru_cache
from math import isnan
from typing import Any, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import torch

from ..config.sampling import COLDEST, GREEDY, LARGEST_PENALTY, SEEDS, SMALLEST_FACTOR, SamplingParams
from ..engine.replica import Replica
from ..engine.sampling import TokenCounts, stream_key
from ..plans.grids import ceil_div

NO_SEED = -1  # the plugin's tensor form of None
_FIELDS = "temperature top_k top_p repetition_penalty presence_penalty frequency_penalty seed enable_log_probs".split()
REMEMBERED = 128  # sequences: four times those that run at once
HOTTEST = 1e6  # a temperature above flattens the float32 softmax no further


class SlotParams(NamedTuple):
    """How a slot's next token is sampled. key: the stream_key of its seed."""

    sampling: SamplingParams = GREEDY
    key: int = 0
    log_prob: bool = False  # vLLM's raw_logprobs: of the logits before temperature and penalties

    @property
    def on_host(self) -> bool:
        return not self.sampling.on_device

    @property
    def reads_logits(self) -> bool:
        return self.on_host or self.log_prob


def slot_params(params: Any, slots: int, vocab_size: int) -> list[SlotParams]:
    """params: the plugin's TTSamplingParams; a field is a list of `slots` or more values, or one value."""
    columns = [getattr(params, name) for name in _FIELDS]
    columns = [c if isinstance(c, (list, tuple)) else [c] * slots for c in columns]
    found = []
    for _, *numbers, log_prob in zip(range(slots), *columns):
        sampling = _sampling_params(*numbers, vocab_size)
        found.append(SlotParams(sampling, stream_key(sampling.seed), bool(log_prob)))
    return found


@lru_cache(maxsize=1024)  # a request has the same values in each of its steps
def _sampling_params(
    temperature, top_k, top_p, repetition_penalty, presence_penalty, frequency_penalty, seed, vocab_size
) -> SamplingParams:  # fmt: skip
    """A number that vLLM accepts becomes the nearest number that SamplingParams accepts."""
    seed = None if seed is None or seed == NO_SEED else int(seed) % SEEDS
    temperature = _clamp(temperature, 0.0, HOTTEST, default=1.0)
    top_p = _clamp(top_p, 0.0, 1.0, default=1.0)
    if top_p == 0:  # only the most likely token; the plugin sends it where top_k is 1
        top_k, top_p = 1, 1.0
    largest = LARGEST_PENALTY
    return SamplingParams(
        temperature=max(temperature, COLDEST) if temperature > 0 else 0.0,
        top_k=int(top_k) if 0 < top_k < vocab_size else 0,  # off: 0, -1 or the vocabulary's size
        top_p=top_p,
        seed=seed,
        repetition_penalty=_clamp(repetition_penalty, SMALLEST_FACTOR, largest, default=1.0),
        presence_penalty=_clamp(presence_penalty, -largest, largest, default=0.0),
        frequency_penalty=_clamp(frequency_penalty, -largest, largest, default=0.0),
    )


def _clamp(value: Any, lowest: float, highest: float, *, default: float) -> float:
    value = float(value)
    return default if isnan(value) else min(max(value, lowest), highest)


def token_counts(
    prompt_tokens: Optional[torch.Tensor], output_tokens: Optional[torch.Tensor], slots: int
) -> list[TokenCounts]:
    """Each slot's tokens so far, of [slots, longest] int32, -1 after a slot's own; None: no slot has a penalty."""
    if prompt_tokens is None or output_tokens is None:
        return [TokenCounts()] * slots
    prompts, answers = (own_tokens(ids, (ids.numpy() >= 0).sum(axis=1)) for ids in (prompt_tokens, output_tokens))
    return list(map(TokenCounts, prompts, answers))


def own_tokens(tokens: torch.Tensor, lengths: Sequence[int]) -> list[np.ndarray]:
    """tokens: [slots, longest] int32."""
    return [row[:length] for row, length in zip(tokens.numpy(), lengths)]


@dataclass(frozen=True, eq=False)
class _Record:
    """The tokens of a sequence so far: those of the last change of slots, and those sampled after it."""

    prompt_length: int
    tokens: np.ndarray
    sampled: list[int] = field(default_factory=list)

    def equals(self, tokens: np.ndarray) -> bool:
        known = len(self.tokens)
        # The end first: it differs between most sequences.
        return (
            len(tokens) == known + len(self.sampled)
            and list(tokens[known:]) == self.sampled
            and np.array_equal(tokens[:known], self.tokens)
        )


class PromptLengths:
    """Remembers where the prompt of a recent sequence ends, for sequences that vLLM preempts.

    A preempted sequence comes back as one prompt that contains its answer, without a mark. Presence and
    frequency penalties count the answer alone. A sequence is found by all of its tokens. A new prompt that
    equals a recent sequence, token by token, is taken for it; that affects one token.
    """

    def __init__(self):
        self._recent: list[_Record] = []  # the oldest first
        self._running: dict[int, _Record] = {}  # by slot

    def start(self, sequences: Mapping[int, TokenCounts]) -> None:
        """Sequences have changed slots. sequences: by slot, those whose answer is counted."""
        self._running = {}
        for slot, counts in sequences.items():
            prompt, answer = (np.asarray(ids, dtype=np.int32) for ids in counts)
            record = _Record(len(prompt), np.concatenate([prompt, answer]))
            earlier = self._find(record.tokens)
            if earlier is not None:  # of this sequence; a further equal sequence finds its own
                self._recent.remove(earlier)
            self._running[slot] = record
        self._recent = [*self._recent, *self._running.values()][-REMEMBERED:]

    def add(self, slot: int, token: int) -> None:
        """A step sampled the slot's next token."""
        if slot in self._running:
            self._running[slot].sampled.append(token)

    def split(self, tokens: np.ndarray) -> TokenCounts:
        """Return a prefill's tokens int32 as prompt and answer."""
        record = self._find(tokens)
        prompt = len(tokens) if record is None else record.prompt_length
        return TokenCounts(tokens[:prompt], tokens[prompt:])

    def _find(self, tokens: np.ndarray) -> Optional[_Record]:
        return next((record for record in self._recent if record.equals(tokens)), None)


class DecodeState:
    """The chips' inputs of the next decode step. vLLM's values lag behind while steps are in flight."""

    def __init__(self, replica: Replica):
        self._replica = replica
        # Whether the step just written starts from vLLM's values, not from the chips' step before.
        self.from_host = True
        self._positions: Optional[list[int]] = None  # of the next step; None: vLLM's are right
        self._tables: Optional[torch.Tensor] = None
        self._tokens: Optional[list[int]] = None  # of the next step; None: the chips hold them

    def write(
        self, tokens: torch.Tensor, start_pos: torch.Tensor, page_table: torch.Tensor, from_host: bool
    ) -> list[int]:
        """Write the next step's inputs. Return the position of each slot's token, INACTIVE for empty slots.

        Without from_host vLLM's tokens and positions may be those of the step before, and the chips' values are used.
        tokens: [slots, 1]. start_pos: [slots]. page_table: [slots, any width].
        """
        self.from_host = from_host = from_host or self._positions is None
        positions = start_pos.tolist() if from_host else self._positions
        tables = own_blocks(page_table, [position + 1 for position in positions], self._replica)
        inputs = self._replica.inputs
        if from_host:
            inputs.write_slots(tokens.flatten().tolist(), positions, tables)
        else:
            if not tables.equal(self._tables):
                inputs.write_block_tables(tables)
            if self._tokens is not None:
                inputs.write_tokens(self._tokens)
        self._positions = [position + (position >= 0) for position in positions]
        self._tables = tables
        self._tokens = None
        return positions

    def set_tokens(self, tokens: Sequence[int]) -> None:
        """The host sampled the tokens of the step just written."""
        self._tokens = list(tokens)

    def invalidate(self) -> None:
        """The next step starts from vLLM's values: vLLM samples, or a prefill's tokens are on the chips."""
        self._positions = None


def own_blocks(page_table: torch.Tensor, lengths: Sequence[int], replica: Replica) -> torch.Tensor:
    """Return [slots of the replica, width of its tables] int32: each slot's own blocks, then block 0.

    After a slot's own blocks, vLLM's page table names blocks of other sequences. No sequence has block 0 in vLLM.
    page_table: [slots, any width]. lengths: tokens of each slot.
    """
    width = min(page_table.shape[1], replica.width)
    own = torch.tensor([ceil_div(n, replica.block) for n in lengths])[:, None]
    tables = torch.zeros(replica.slots, replica.width, dtype=torch.int32)
    tables[: len(page_table), :width] = torch.where(torch.arange(width) < own, page_table[:, :width], 0)
    return tables

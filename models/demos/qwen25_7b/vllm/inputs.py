"""vLLM's tensors and sampling parameters as a Replica takes them. Nothing here raises: that would end the engine."""

from functools import lru_cache
from math import isnan
from typing import Any, Optional, Sequence

import numpy as np
import torch

from ..config.sampling import COLDEST, LARGEST_PENALTY, SEEDS, SMALLEST_FACTOR, SamplingParams
from ..engine.replica import Replica
from ..engine.sampling import NextToken, TokenCounts, stream_key
from ..plans.grids import ceil_div

_FIELDS = "temperature top_k top_p repetition_penalty presence_penalty frequency_penalty seed enable_log_probs".split()
HOTTEST = 1e6  # a temperature above flattens the float32 softmax no further


def tokens_to_sample(params: Any, positions: Sequence[int], vocab_size: int) -> list[NextToken]:
    """The next token of each slot, without counts. positions: of these tokens; 0 for a slot without a sequence.

    params: the plugin's TTSamplingParams; a field is a list of as many values or more.
    """
    tokens = []
    rows = zip(positions, *(getattr(params, name) for name in _FIELDS))
    for slot, (position, *numbers, log_prob) in enumerate(rows):
        if position > 0:
            sampling = _sampling_params(*numbers, vocab_size)
            tokens.append(NextToken(slot, sampling, stream_key(sampling.seed), position, log_prob=bool(log_prob)))
    return tokens


@lru_cache(maxsize=1024)  # a request has the same values in each of its steps
def _sampling_params(
    temperature, top_k, top_p, repetition_penalty, presence_penalty, frequency_penalty, seed, vocab_size
) -> SamplingParams:  # fmt: skip
    """A number that vLLM accepts becomes the nearest number that SamplingParams accepts."""
    seed = None if seed in (None, -1) else int(seed) % SEEDS  # -1: the plugin's tensor form of None
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


class DecodeState:
    """The chips' inputs of the next decode step. vLLM's values lag behind while steps are in flight."""

    def __init__(self, replica: Replica):
        self._replica = replica
        # Whether the step just written starts from vLLM's values, not from the chips' step before.
        self.from_host = True
        self._positions: Optional[list[int]] = None  # of the next step; None: vLLM's are right
        self._tables: Optional[torch.Tensor] = None
        self.tokens: Optional[list[int]] = None  # of the next step, where the host sampled them

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
            if self.tokens is not None:
                inputs.write_tokens(self.tokens)
        self._positions = [position + (position >= 0) for position in positions]
        self._tables, self.tokens = tables, None
        return positions

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

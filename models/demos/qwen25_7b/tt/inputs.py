"""The tensors that a step reads. They are allocated once and written before a step, so that a trace finds them again.

A class of inputs holds its tensors in one of three states:

    values = DecodeInputs.of(tokens, positions, page_table, decode)   # torch
    host = values.to_host(mesh_device)                                # ttnn, on the host, for every chip
    device = host.to_device(mesh_device)                              # ttnn, allocated in DRAM

`for source, target in zip(host, device)` pairs a new value with the device tensor that it is copied to.
"""

from dataclasses import dataclass
from typing import Callable, ClassVar, Iterator, Sequence

import torch
import ttnn

from ..config.sampling import CANDIDATES, GREEDY, SamplingParams
from ..plans.decode_plan import DecodeLayout
from ..plans.grids import TILE
from ..plans.parallel_plan import MAX_USERS
from .model_config import TtModelConfig
from .placement import host_tensor

Tensor = torch.Tensor | ttnn.Tensor  # torch until `to_host`
NEVER = -1e30  # added to a score: no logit makes up for it, and unlike -inf it makes no NaN
UNIFORMS = 8  # random numbers of a token that is sampled from the whole vocabulary
MOST_COUNTED = 256  # times that a token is counted: the chips count in bfloat16, where 256 + 1 is 256

# How a chip holds an input.
UINT32 = ttnn.uint32, ttnn.ROW_MAJOR_LAYOUT
INT32 = ttnn.int32, ttnn.ROW_MAJOR_LAYOUT
FLOAT32 = ttnn.float32, ttnn.TILE_LAYOUT


@dataclass(frozen=True)
class Inputs:
    """The tensors of one kind of step; every chip holds all of them."""

    FORMATS: ClassVar[tuple]  # (dtype, layout) of each field, in their order

    def __iter__(self) -> Iterator:
        """All tensors in the order of the fields."""
        for value in vars(self).values():
            yield from value if isinstance(value, tuple) else (value,)

    def to_host(self, mesh_device: ttnn.MeshDevice):
        """torch values -> ttnn tensors on the host."""

        def host(value: torch.Tensor, dtype: ttnn.DataType, layout: ttnn.Layout) -> ttnn.Tensor:
            typed = value.float() if dtype == ttnn.float32 else value.int()
            return host_tensor(typed, mesh_device, dtype, layout)

        return self._map(host)

    def to_device(self, mesh_device: ttnn.MeshDevice):
        """Tensors on the host -> new tensors in the chips' DRAM."""
        return self._map(lambda tensor, *_: ttnn.to_device(tensor, mesh_device, memory_config=ttnn.DRAM_MEMORY_CONFIG))

    def _map(self, change: Callable):
        """change(tensor, dtype, layout) of each tensor."""
        return type(self)(
            *(
                tuple(change(each, *format) for each in value) if isinstance(value, tuple) else change(value, *format)
                for value, format in zip(vars(self).values(), self.FORMATS, strict=True)
            )
        )


@dataclass(frozen=True)
class DecodeInputs(Inputs):
    """A decode step: one token of each slot."""

    FORMATS: ClassVar = (UINT32, INT32, UINT32, UINT32, INT32)

    tokens: Tensor  # [1, 1, 1, 32]
    positions: Tensor  # [slots]: of each token in its sequence; INACTIVE for an inactive slot
    rotary_positions: Tensor  # [1, 32 * rotary_users]: see expand_rotary_positions
    key_rows: Tensor  # [1, 32 * slots]: decode_key_rows, for centered keys
    page_table: Tensor  # [slots, blocks of the longest sequence]

    @classmethod
    def of(
        cls, tokens: Sequence[int], positions: Sequence[int], page_table: torch.Tensor, model_config: TtModelConfig
    ) -> "DecodeInputs":
        """torch values. Slots that `tokens` does not reach read token 0."""
        position_of_slot = torch.tensor(positions, dtype=torch.int32)
        # The rotary tables begin at position 0; an inactive slot may look up any row.
        looked_up = position_of_slot.clamp(min=0)
        rotary = expand_rotary_positions(looked_up, model_config.decode)
        key_rows = decode_key_rows(looked_up, model_config)
        return cls(token_row(tokens), position_of_slot, rotary, key_rows, page_table)

    @property
    def cache_positions(self) -> tuple[Tensor, ...]:
        """[slots] positions for each update of the cache."""
        return (self.positions,)

    def advance(self, *, centered_keys: bool) -> None:
        """Move each active slot to its next position, on the chips. centered_keys: whether a layer reads key_rows."""
        ttnn.plus_one(self.positions, skip_negative_entries=True)
        # An inactive slot's rotary position counts up from 0, so it never leaves the tables before an active slot does.
        ttnn.plus_one(self.rotary_positions)
        if centered_keys:
            ttnn.plus_one(self.key_rows)


@dataclass(frozen=True)
class VerifyInputs(DecodeInputs):
    """A step that verifies draft tokens: each token has its own slot, with the page table of its sequence."""

    FORMATS: ClassVar = (*DecodeInputs.FORMATS, INT32)

    # [slots] each: tensor i has the position of every sequence's token i, and INACTIVE elsewhere. Rows of one update
    # that lie in one tile of the cache overwrite each other on chips, so each update writes one token of a sequence.
    draft_positions: tuple[Tensor, ...]

    @property
    def cache_positions(self) -> tuple[Tensor, ...]:
        return self.draft_positions


@dataclass(frozen=True)
class GroupedInputs(VerifyInputs):
    """A verify step in which each sequence has a group of neighboring slots, whose attention reads its cache once.

    Slots g * size to (g + 1) * size - 1 are group g, its tokens in order. A group may have fewer tokens than slots.
    """

    FORMATS: ClassVar = (*VerifyInputs.FORMATS, INT32, INT32)

    # [slots]: the position that a slot attends to. It never decreases within a group, so slots after the group's last
    # token repeat that token's. INACTIVE in all slots of a group without a sequence.
    attended: Tensor
    group_tables: Tensor  # [groups, blocks of the longest sequence]


@dataclass(frozen=True)
class PrefillInputs(Inputs):
    """A prefill batch of S rows: whole prompts side by side, each from its first token, with padding."""

    FORMATS: ClassVar = (UINT32, UINT32, UINT32, INT32, UINT32, INT32)

    tokens: Tensor  # [1, 1, 1, S]
    positions: Tensor  # [1, S]: of each row in its prompt; any position for padding
    key_rows: Tensor  # [1, kv_heads * S]: prefill_key_rows, for centered keys
    fill_table: Tensor  # [1, S / block]: the cache block of each block of rows, or NO_BLOCK
    logits_indices: Tensor  # [1, 32]: the row of each slot's logits
    window_starts: Tensor  # [S / 32 + 1]: rows where prompts begin, ascending from 0, then S


@dataclass(frozen=True)
class ChunkedPrefillInputs(Inputs):
    """A prefill batch of S rows over chunks of B sequences, one after the other, S / B rows each.

    The cache holds the tokens before each chunk. All chunks start at one position, because attention takes one start.
    """

    FORMATS: ClassVar = (UINT32, UINT32, UINT32, INT32, UINT32, INT32, INT32, INT32)

    tokens: Tensor  # [1, 1, 1, S]
    positions: Tensor  # [1, S / B]: of a chunk's rows, alike in all sequences; any for padding
    key_rows: Tensor  # [1, kv_heads * S]: prefill_key_rows, for centered keys
    fill_table: Tensor  # [B, S / B / block]: as in PrefillInputs
    logits_indices: Tensor  # [1, 32]: as in PrefillInputs
    start: Tensor  # [1]: position of each chunk's row 0, a multiple of chunk_step(S / B, block)
    # [B, W]: each sequence's blocks, then any existing block; W is a multiple of 8
    page_table: Tensor
    sequences: Tensor  # [B]: 0, 1, ... B - 1, the rows of fill_table


AnyPrefillInputs = PrefillInputs | ChunkedPrefillInputs


def penalty_factors(params: SamplingParams) -> tuple[float, float, float, float]:
    """Penalties as numbers for a logit. A number is 0 without its penalty.

    - positive: times a positive logit of a token that was seen, added to it.
    - negative: times a negative one's size, taken off it.
    - frequency: taken off as often as the answer has the token, up to MOST_COUNTED times.
    - presence: taken off if it has it.
    """
    penalty = params.repetition_penalty
    return 1 / penalty - 1, penalty - 1, params.frequency_penalty, params.presence_penalty


@dataclass(frozen=True)
class SamplingControls(Inputs):
    """How each slot's token is sampled; a row is a slot. float32 in tiles."""

    FORMATS: ClassVar = (FLOAT32,) * 9

    inverse_temperature: Tensor  # [1, 1, 32, 1]
    allowed: Tensor  # [1, 1, 32, CANDIDATES]: 0, or NEVER past the slot's top-k
    top_p: Tensor  # [1, 1, 32, 1]
    full: Tensor  # [1, 1, 32, 1]: 1 where any token may be sampled, else 0
    positive: Tensor  # these four [1, 1, 32, 1]: penalty_factors; zeros change nothing
    negative: Tensor
    frequency: Tensor
    presence: Tensor
    # [1, 1, 32, CANDIDATES]: new for every step of a slot that samples at random; UNIFORMS numbers of a full slot
    noise: Tensor

    @classmethod
    def of(cls, params: Sequence[SamplingParams]) -> "SamplingControls":
        """torch values without noise: row u for params[u], greedy for the rows after them."""
        params = (*params, *[GREEDY] * (MAX_USERS - len(params)))
        allowed = torch.zeros(MAX_USERS, CANDIDATES)
        for row, p in zip(allowed, params):
            row[1 if p.greedy else p.top_k or CANDIDATES :] = NEVER
        return cls(
            _column([1.0 if p.greedy else 1 / p.temperature for p in params]),
            allowed[None, None],
            # 2: rounding may take the sum of all probabilities past 1, which is to keep everything
            _column([p.top_p if p.top_p < 1 else 2 for p in params]),
            _column([p.full for p in params]),
            *map(_column, zip(*map(penalty_factors, params))),
            torch.zeros(1, 1, MAX_USERS, CANDIDATES),
        )

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """All tensors but the noise: they change with a slot's request, the noise with every step."""
        return tuple(self)[:-1]


def _column(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)[None, None, :, None]


def expand_rotary_positions(positions: torch.Tensor, decode: DecodeLayout) -> torch.Tensor:
    """[slots] positions from 0 on -> [1, 32 * rotary_users]: a slot's position for all 32 rows of its tile.

    First for q; again for k where one op rotates both. The look-up then lays a slot's factors onto its core, and
    no op has to move them there.
    """
    return positions.repeat(decode.rotary_users // len(positions)).repeat_interleave(TILE)[None]


def decode_key_rows(positions: torch.Tensor, model_config: TtModelConfig) -> torch.Tensor:
    """[slots] positions from 0 on -> [1, 32 * slots]: a row of TtCenteredKeys.table for each row of a slot's tile.

    A step later all of them are larger by 1. Rows of the tile past kv_heads are not read and take head 0's.
    """
    heads = torch.arange(TILE)
    firsts = torch.where(heads < model_config.parallel.kv_heads, heads * model_config.max_seq_len, 0)
    return (positions[:, None] + firsts).view(1, -1)


def prefill_key_rows(positions: torch.Tensor, model_config: TtModelConfig, sequences: int = 1) -> torch.Tensor:
    """[1, S / B] positions, alike in all B sequences -> [1, B * kv_heads * S / B]: rows of the table in k's order."""
    firsts = torch.arange(model_config.parallel.kv_heads)[:, None] * model_config.max_seq_len
    return (positions + firsts).repeat(sequences, 1).view(1, -1)


def token_row(tokens: Sequence[int]) -> torch.Tensor:
    """[1, 1, 1, 32] int32: each slot's token, then zeros."""
    row = torch.zeros(1, 1, 1, MAX_USERS, dtype=torch.int32)
    row[..., : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
    return row

"""Inputs of decode steps: the device tensors, and the sequences' values for them."""

from typing import Iterable, Mapping

import torch
import ttnn

from ..config.sampling import CANDIDATES, GREEDY, SamplingParams
from ..plans.blocks import INACTIVE, attention_table, attention_tables
from ..plans.parallel_plan import MAX_USERS
from ..tt.inputs import FLOAT32, INT32, UINT32, DecodeInputs, GroupedInputs, SamplingControls, VerifyInputs, token_row
from ..tt.placement import host_tensor, replicate
from ..tt.transformer import TtTransformer
from .sampling import NextToken, SamplingMode, TokenCounts, TokenTables, gumbel, uniform
from .scheduler import Sequence
from .speculation import Draft
from .trace import Queues

# Tokens of a sequence that one attention reads the cache for: sizes that were seen right on simulated chips.
GROUP_SIZES = (8, 4, 2)
# A group's tokens times a chunk's keys, at most: ttnn's circular buffers for 8 x 512 need 1.83 MB of a core's 1.39 MB.
GROUP_SCORES = 8 * 256


class DeviceInputs:
    """The device tensors that decode and verify steps read. They stay allocated.

    - decode, verify: the inputs of a forward.
    - grouped: those of a verify step with a group of slots for each sequence; None where attention reads no groups.
    - controls: each slot's sampling parameters and noise.
    - width: entries of a sequence's block table. block: tokens of an entry.
    - speculate: tokens of a sequence in a verify step.
    """

    def __init__(self, model: TtTransformer, queues: Queues, width: int, block: int, speculate: int):
        self.mesh_device = model.mesh_device
        self.slots = model.model_config.decode.slots
        self.width = width
        self._model_config = model.model_config
        self._penalties = model.penalties
        self._tables = TokenTables(model.penalties.columns)
        self._queues = queues
        self._params: list[SamplingParams] = [GREEDY] * self.slots  # as written last
        self._inactive = torch.full((self.slots,), INACTIVE, dtype=torch.int32)
        tables = attention_tables([[]] * self.slots, width)
        slots = self._host_slots([0] * self.slots, self._inactive.tolist(), tables)
        self.decode = slots.to_device(self.mesh_device)
        drafts = (replicate(self._inactive, self.mesh_device, *INT32) for _ in range(speculate))
        self.verify = VerifyInputs(*self.decode, draft_positions=tuple(drafts))
        self.grouped = self._groups(model.model_config.parallel.kv_heads, speculate, block)
        self.controls = SamplingControls.of([]).to_host(self.mesh_device).to_device(self.mesh_device)

    def _groups(self, kv_heads: int, tokens: int, block: int) -> GroupedInputs | None:
        """None where a chip has several KV heads, which ttnn does not group. tokens: of a sequence in a step."""
        k_chunk = self._model_config.decode.k_chunk(self.width * block)
        fitting = (n for n in GROUP_SIZES if n <= tokens and n * k_chunk <= GROUP_SCORES)
        size = next((n for n in fitting if self.slots % n == 0), None)
        if kv_heads > 1 or size is None:
            return None
        tables = attention_tables([[]] * (self.slots // size), self.width)
        new = (replicate(value, self.mesh_device, *INT32) for value in (self._inactive, tables))
        return GroupedInputs(*self.decode, self.verify.draft_positions[:size], *new)

    def write_verify(self, drafts: Iterable[Draft], *, grouped: bool = False) -> None:
        """Write a verify step. grouped: the slots of each draft are the first ones of a group."""
        tokens = [0] * self.slots
        positions = [INACTIVE] * self.slots
        tables = [attention_table([], self.width)] * self.slots
        # One update must not write a cache tile twice, and a sequence's tokens lie in one tile. The
        # i-th update therefore writes the i-th token of every sequence.
        writes = [[INACTIVE] * self.slots for _ in self.verify.draft_positions]
        for draft in drafts:
            table = attention_table(draft.sequence.blocks, self.width)
            first = len(draft.sequence.tokens) - 1
            for i, (slot, token) in enumerate(zip(draft.slots, draft.tokens)):
                tokens[slot] = token
                positions[slot] = writes[i][slot] = first + i
                tables[slot] = table
        self.write_slots(tokens, positions, torch.stack(tables), writes)
        if grouped:
            size = len(self.grouped.draft_positions)
            attended = [max(positions[i - i % size : i + 1]) for i in range(self.slots)]
            new = self._host_ints(attended), self._host_ints(torch.stack(tables[::size]))
            self._queues.write(zip(new, (self.grouped.attended, self.grouped.group_tables)))

    def write_slots(
        self, tokens: list[int], positions: list[int], page_table: torch.Tensor, writes: Iterable[list[int]] = ()
    ) -> None:
        """Write where the next step starts: tokens[i] goes to positions[i] of slot i's sequence.

        A step advances the tokens and positions itself. Call this when sequences enter or leave slots.
        positions: INACTIVE for a slot without a sequence, as for slots after the list. page_table: [slots, width]
        int32.
        writes: for a verify step, the positions of each of its cache updates.
        """
        positions = [*positions, *[INACTIVE] * (self.slots - len(positions))]
        slots = self._host_slots(tokens, positions, page_table)
        updates = zip(map(self._host_ints, writes), self.verify.draft_positions)
        self._queues.write([*zip(slots, self.decode, strict=True), *updates])

    def write_block_tables(self, page_table: torch.Tensor) -> None:
        """page_table: [slots, width] int32."""
        self._queues.write([(self._host_ints(page_table), self.decode.page_table)])

    def write_tokens(self, tokens: list[int]) -> None:
        """Replace the next step's tokens, where the host sampled them."""
        self._queues.write([(host_tensor(token_row(tokens), self.mesh_device, *UINT32), self.decode.tokens)])

    def write_sampling_params(self, params: list[SamplingParams]) -> None:
        """params: of each slot; slots after the list are greedy. Equal parameters are not written again."""
        params = [*params, *[GREEDY] * (self.slots - len(params))]
        if params != self._params:
            host = SamplingControls.of(params).to_host(self.mesh_device)
            self._params = []  # unknown if the write fails
            self._queues.write(zip(host.parameters, self.controls.parameters, strict=True))
            self._params = params

    def write_noise(self, noise: torch.Tensor) -> None:
        """noise: [32, CANDIDATES] for the next step; greedy slots have zeros."""
        self._queues.write([(host_tensor(noise[None, None], self.mesh_device, *FLOAT32), self.controls.noise)])

    def write_sampling(self, next_tokens: list[NextToken], *, new_counts: bool) -> SamplingMode:
        """Write how the chips sample those of the tokens that they can. Return the mode of the launch.

        All other slots are greedy. new_counts: slots have changed, so the chips count from the tokens' `counts` on.
        """
        next_tokens = [t for t in next_tokens if t.params.on_device]
        params = [GREEDY] * self.slots
        for t in next_tokens:
            params[t.slot] = t.params
        self.write_sampling_params(params)
        penalized = {t.slot: t.counts for t in next_tokens if t.params.penalized}
        if new_counts and penalized:
            self.write_token_counts(penalized, occurrences=any(p.counts_answer for p in params))
        full = [t for t in next_tokens if t.params.full]
        ranked = [t for t in next_tokens if not (t.params.full or t.params.greedy)]
        if full or ranked:
            noise = torch.zeros(MAX_USERS, CANDIDATES)
            for tokens, random in ((full, uniform), (ranked, gumbel)):
                slots, keys, positions = ([getattr(t, name) for t in tokens] for name in ("slot", "key", "position"))
                numbers = random(keys, positions)
                noise[slots, : numbers.shape[1]] = numbers
            self.write_noise(noise)
        return SamplingMode.of(params)

    def write_token_counts(self, counts: Mapping[int, TokenCounts], *, occurrences: bool) -> None:
        """counts: of all slots with a penalty. Steps keep them up to date from here on.

        Needed before a prefill that samples for such a slot, and before a step after a prefill or
        after a sequence changed its slot. Writes [32, vocabulary] bfloat16: the tokens that the sequences have,
        and how often with `occurrences`, which only some penalties need.
        """
        tables, penalties = self._tables, self._penalties
        tables.update(counts, occurrences=occurrences)
        self._queues.write([(penalties.to_host(tables.seen), penalties.rows)])
        penalties.load(penalties.seen)
        if occurrences:
            self._queues.write([(penalties.to_host(tables.counts), penalties.rows)])
            penalties.load(penalties.counts)

    def _host_slots(self, tokens: list[int], positions: list[int], page_table: torch.Tensor) -> DecodeInputs:
        return DecodeInputs.of(tokens, positions, page_table, self._model_config).to_host(self.mesh_device)

    def _host_ints(self, values: list[int] | torch.Tensor) -> ttnn.Tensor:
        return host_tensor(torch.as_tensor(values, dtype=torch.int32), self.mesh_device, *INT32)


class InputBatch:
    """Writes the changed values of running sequences to the device inputs. on_host: as in ReplicaEngine."""

    def __init__(self, inputs: DeviceInputs, *, on_host: bool):
        self._device = inputs
        self._on_host = on_host
        # Whether the device's tokens and positions are those of the sequences: a step may start from them. Set it to
        # False when slots have changed.
        self.valid = False

    def samples_on_host(self, sequence: Sequence) -> bool:
        return self._on_host or not sequence.params.on_device

    def write_step(self, running: list[Sequence], in_flight: int) -> SamplingMode:
        """Prepare a decode step; return its mode. in_flight: steps launched and not read before it."""
        tokens = [0] * self._device.slots
        for sequence in running:
            tokens[sequence.slot] = sequence.tokens[-1]
        changed, self.valid = not self.valid, True
        if changed:
            positions = [INACTIVE] * self._device.slots
            blocks: list[list[int]] = [[] for _ in range(self._device.slots)]
            for sequence in running:
                positions[sequence.slot] = len(sequence.tokens) - 1
                blocks[sequence.slot] = sequence.blocks
            self._device.write_slots(tokens, positions, attention_tables(blocks, self._device.width))
        elif any(map(self.samples_on_host, running)):
            self._device.write_tokens(tokens)
        # The step writes after those in flight and samples the token after what it writes.
        return self._write_sampling(((s.slot, s, len(s.tokens) + in_flight) for s in running), new_counts=changed)

    def write_prefill(self, running: list[Sequence], sampled: list[Sequence]) -> SamplingMode:
        """Prepare a prefill that samples the first new token of `sampled`; return its mode."""
        self.valid = False  # the prefill's sampler writes a token for each of the 32 slots
        if not sampled:
            return SamplingMode.GREEDY
        new_counts = any(s.params.penalized and not self.samples_on_host(s) for s in sampled)
        return self._write_sampling(((s.slot, s, len(s.tokens)) for s in running), new_counts=new_counts)

    def write_drafts(self, drafts: list[Draft], *, grouped: bool = False) -> SamplingMode:
        """Prepare a verify step (write_verify); return its mode.

        The host says which tokens stay, so it writes all of the next step.
        """
        self._device.write_verify(drafts, grouped=grouped)
        self.valid = False
        samples = [
            (slot, draft.sequence, len(draft.sequence.tokens) + i)
            for draft in drafts
            for i, slot in enumerate(draft.slots)
        ]
        return self._write_sampling(samples, new_counts=False)

    def _write_sampling(self, samples: Iterable[tuple[int, Sequence, int]], *, new_counts: bool) -> SamplingMode:
        """samples: slot, sequence and position of each token."""
        next_tokens = [s.next_token(slot, position, counted=new_counts) for slot, s, position in samples]
        return self._device.write_sampling([] if self._on_host else next_tokens, new_counts=new_counts)

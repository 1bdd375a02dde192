"""Replica: one model on its row of chips, with the tensors that its steps read and the traces that run them."""

from collections import deque
from typing import Callable, NamedTuple, Sequence

import torch
import ttnn

from models.demos.qwen25_7b.config.sampling import CANDIDATES, Sampling
from models.demos.qwen25_7b.plans.decode_plan import MAX_USERS
from models.demos.qwen25_7b.plans.grids import padded_prompt
from models.demos.qwen25_7b.plans.page_plan import NOWHERE, prefill_table
from models.demos.qwen25_7b.serving.trace import Queues, TracedStep
from models.demos.qwen25_7b.tt.placement import host_replicated
from models.demos.qwen25_7b.tt.sampler import SamplingControls, host_controls, host_noise
from models.demos.qwen25_7b.tt.transformer import DecodeInputs, PrefillInputs, TtTransformer

TRACED_PROMPTS = (128, 1024)  # padded lengths; others run op by op


class TracedPrompt(NamedTuple):
    """A padded prompt length that is traced."""

    inputs: PrefillInputs
    step: TracedStep


class Replica:
    """Steps are launched and read apart, so that all replicas of a mesh work at once, and one ahead of its reader.

    A step's outcome is a token id a row of the batch, sampled on the chips; with host_logits it is the logits instead.
    traced: replay captured steps (not possible in slow dispatch). queues: command queues that the mesh was opened with.
    """

    def __init__(self, model: TtTransformer, *, traced: bool, queues: int = 1, host_logits: bool = False):
        self.model, self.mesh_device = model, model.mesh_device
        self.batch = model.decode.batch
        self.host_logits = host_logits
        self.queues = Queues(self.mesh_device, queues)
        idle = [NOWHERE] * self.batch, torch.stack([model.pages.decode_table([])] * self.batch)
        # All that stays is allocated here, before a trace is captured: a replay writes where memory was free at its capture.
        self.inputs = DecodeInputs(*self._on_device(self._host_inputs([0] * self.batch, *idle)))
        noise = host_noise(self.mesh_device, torch.zeros(MAX_USERS, CANDIDATES))
        self.controls = SamplingControls(*self._on_device((*host_controls(self.mesh_device, []), noise)))
        self._tokens = ttnn.get_device_tensors(self.inputs.tokens)[0]  # every chip holds the same: one is read
        longest = padded_prompt(model.max_seq_len)
        self.prompts = {rows: self._traced_prompt(rows) for rows in TRACED_PROMPTS if traced and rows <= longest}
        self.decode = TracedStep(self.mesh_device, self._decode, traced=traced)
        self._pending = deque()

    def prefill(self, tokens: Sequence[int], blocks: Sequence[int], places: Sequence[int] = ()) -> None:
        """Fill `blocks` (the user's, in order) of all layers' caches with a prompt; `read` gives what follows it.

        Every row of the outcome is this prompt's, chosen by the row's controls and noise: take the user's.
        places: up to 32 of the prompt's tokens; row i is then what follows token places[i], and further rows the last.
        """
        rows = padded_prompt(len(tokens))
        prompt = self._host_prompt(rows, tokens, blocks, places)
        if rows in self.prompts:
            traced = self.prompts[rows]
            self.queues.write(list(zip(prompt, traced.inputs, strict=True)))
            self._pending.append(self._outcome(traced.step.run()))
            return
        inputs = PrefillInputs(*self._on_device(prompt))
        results = self._prefill(inputs)
        outcome = self._outcome(results)()
        self._pending.append(lambda: outcome)
        for tensor in (*inputs, *results):
            ttnn.deallocate(tensor)

    def place(self, tokens: Sequence[int], positions: Sequence[int], page_table: torch.Tensor) -> None:
        """Where the next step starts: tokens[u] goes to positions[u] for each row of the batch; NOWHERE: the row is idle.

        page_table: [batch, blocks_per_user] int32. Needed when users come or go; else the chips go on by themselves, each
        user at its next position, with the token that was sampled for it, and idle rows stay idle.
        """
        self.queues.write(list(zip(self._host_inputs(tokens, positions, page_table), self.inputs, strict=True)))

    def place_sampling(self, samplings: Sequence[Sampling]) -> None:
        """How row u of the batch is sampled from now on."""
        self.queues.write(list(zip(host_controls(self.mesh_device, samplings), self.controls)))

    def place_noise(self, noise: torch.Tensor) -> None:
        """[32, CANDIDATES] for the next step; for greedy rows zeros, as they are from the beginning."""
        self.queues.write([(host_noise(self.mesh_device, noise), self.controls.noise)])

    def place_tokens(self, tokens: Sequence[int]) -> None:
        """The next step's tokens, where they are chosen on the host."""
        self.queues.write([(self._host_tokens(tokens), self.inputs.tokens)])

    def launch(self) -> None:
        """Start a decode step; `read` waits for it."""
        self._pending.append(self._outcome(self.decode.run()))

    @property
    def in_flight(self) -> int:
        """Steps launched and not read."""
        return len(self._pending)

    def read(self) -> Sequence:
        """The outcome of the oldest step that was not read: 32 token ids, or logits [32, vocab_size] with host_logits."""
        return self._pending.popleft()()

    def close(self) -> None:
        """Release the traces; the model's tensors go with the mesh."""
        for step in (self.decode, *(prompt.step for prompt in self.prompts.values())):
            step.release()

    def _traced_prompt(self, rows: int) -> TracedPrompt:
        inputs = PrefillInputs(*self._on_device(self._host_prompt(rows, [0], [])))
        return TracedPrompt(inputs, TracedStep(self.mesh_device, lambda: self._prefill(inputs), traced=True))

    def _decode(self) -> list[ttnn.Tensor]:
        results = []
        if self.host_logits:
            results = self.model.forward_decode(self.inputs)
        else:
            self.model.sample_decode(self.inputs, self.controls, self.inputs.tokens)
        ttnn.plus_one(self.inputs.positions, skip_negative_entries=True)
        # An idle row counts up here from 0, where `place` put it: never past a user, who began at 1 or later.
        ttnn.plus_one(self.inputs.rotary_positions)
        return results

    def _prefill(self, inputs: PrefillInputs) -> list[ttnn.Tensor]:
        if self.host_logits:
            return self.model.forward_prefill(inputs)
        self.model.sample_prefill(inputs, self.controls, self.inputs.tokens)
        return []

    def _outcome(self, results: list[ttnn.Tensor]) -> Callable[[], Sequence]:
        """What waits for the step that was just started. Token ids are on their way already: 128 bytes."""
        if self.host_logits:
            return lambda: self.model.read_logits(results)
        ids = self.queues.read(self._tokens)
        return lambda: ttnn.to_torch(ids.get()).flatten().tolist()

    def _on_device(self, tensors: Sequence[ttnn.Tensor]) -> list[ttnn.Tensor]:
        return [ttnn.to_device(t, self.mesh_device, memory_config=ttnn.DRAM_MEMORY_CONFIG) for t in tensors]

    def _host_prompt(
        self, rows: int, tokens: Sequence[int], blocks: Sequence[int], places: Sequence[int] = ()
    ) -> tuple[ttnn.Tensor, ...]:
        """The tensors of PrefillInputs, in its order, on the host; what lies past the prompt is written nowhere."""
        padded = torch.zeros(1, 1, 1, rows, dtype=torch.int32)
        padded[..., : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        positions = torch.arange(rows, dtype=torch.int32)[None]
        positions[:, len(tokens) :] = 0  # padding may be longer than the rotary tables
        table = prefill_table(blocks, rows)[None]
        wanted = torch.full((1, MAX_USERS), len(tokens) - 1, dtype=torch.int32)
        wanted[0, : len(places)] = torch.tensor(places, dtype=torch.int32)
        dtypes = (ttnn.uint32, ttnn.uint32, ttnn.int32, ttnn.uint32)
        return tuple(
            host_replicated(value, self.mesh_device, dtype)
            for value, dtype in zip((padded, positions, table, wanted), dtypes)
        )

    def _host_inputs(self, tokens, positions, page_table: torch.Tensor) -> tuple[ttnn.Tensor, ...]:
        """The tensors of DecodeInputs, in its order, on the host."""
        at = torch.tensor(positions, dtype=torch.int32)
        rotary = at.clamp(min=0).repeat(self.model.decode.rotary_users // self.batch)[None]
        others = ((at, ttnn.int32), (rotary, ttnn.uint32), (page_table, ttnn.int32))
        return self._host_tokens(tokens), *(host_replicated(v, self.mesh_device, dtype) for v, dtype in others)

    def _host_tokens(self, tokens: Sequence[int]) -> ttnn.Tensor:
        row = torch.zeros(1, 1, 1, MAX_USERS, dtype=torch.int32)
        row[..., : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        return host_replicated(row, self.mesh_device, ttnn.uint32)

"""Replica: one model on its row of chips, with its caches, its device inputs and its traces."""

from collections import deque
from functools import partial
from typing import Callable, Hashable, Mapping, NamedTuple, Optional, Sequence

import torch
import ttnn

from models.common.errors import UserError
from models.common.mesh import TRACE_REGION_BYTES
from models.demos.qwen25_7b.config import MAX_USERS, ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.loading.load import load_model
from models.demos.qwen25_7b.plans.blocks import (
    BLOCK,
    blocks_for,
    check_block,
    table_width,
)
from models.demos.qwen25_7b.plans.memory_budget import (
    check_fits,
    free_dram,
    memory_budget,
    smaller_sizes,
)
from models.demos.qwen25_7b.plans.trace_region import traces_that_fit
from models.demos.qwen25_7b.tt.attention import TtKVCache, allocate_caches
from models.demos.qwen25_7b.tt.inputs import ChunkedPrefillInputs, PrefillInputs, VerifyInputs
from models.demos.qwen25_7b.tt.placement import chips_in_row
from models.demos.qwen25_7b.tt.transformer import TtTransformer
from models.demos.qwen25_7b.serving.input_batch import DeviceInputs
from models.demos.qwen25_7b.serving.prefill_batch import (
    PrefillBatch,
    PrefillKind,
    blank_inputs,
    prefill_inputs,
)
from models.demos.qwen25_7b.serving.prefill_packing import prefill_kinds
from models.demos.qwen25_7b.serving.sampling import SamplingMode
from models.demos.qwen25_7b.serving.trace import PendingRead, Queues, TracedStep
from models.demos.qwen25_7b.weights import TensorSource

# modes that sample a prefill's logits behind its trace
SAMPLED_AGAIN = SamplingMode.PENALIZED, SamplingMode.FULL


class TracedPrefill(NamedTuple):
    inputs: PrefillInputs | ChunkedPrefillInputs
    step: TracedStep


class Replica:
    """Launches prefill batches and decode steps, and reads their tokens apart from the launch.

    All replicas of a mesh therefore work at once, and a step runs while the step before it is read. Each
    launch samples a token for every slot on the chips. The replica keeps the logits of that launch.

    - caches: one a layer.
    - users: sequences at once (default: the model's slots).
    - speculate: tokens of a sequence in a verify step.
    - traced: whether the mesh has traces. Slow dispatch and a mesh without a trace region have none.
    - queues: command queues that the mesh was opened with.
    """

    def __init__(
        self,
        model: TtTransformer,
        caches: Sequence[TtKVCache],
        *,
        traced: bool,
        queues: int = 1,
        users: Optional[int] = None,
        speculate: int = 1,
    ):
        self.model = model
        self.mesh_device = model.mesh_device
        self.caches = caches
        self.traced = traced
        self.batch = model.config.decode.batch
        self.speculate = speculate
        self.users = self.batch if users is None else users
        self.block = caches[0].block
        self.blocks = caches[0].shape[0]
        # A cache update refuses a table with more entries than the cache has blocks.
        self.width = min(table_width(model.config.max_seq_len, self.block), self.blocks)
        self.queues = Queues(self.mesh_device, queues, events=traced)
        # Everything permanent is allocated here, before a trace is captured: a replay writes to
        # memory that was free at its capture.
        self.inputs = DeviceInputs(model, self.queues, self.width, self.block, speculate)
        # Every chip holds the same tokens; one chip's are read.
        self._tokens = ttnn.get_device_tensors(self.inputs.decode.tokens)[0]
        self.decode_steps = {
            mode: self._traced(partial(self._decode, mode)) for mode in SamplingMode
        }
        # Token counts belong to a slot, so a sequence with penalties gets no draft tokens.
        modes = SamplingMode.GREEDY, SamplingMode.RANDOM, SamplingMode.FULL
        of_inputs = {False: self.inputs.verify, True: self.inputs.grouped}
        self.verify_steps = {
            (mode, grouped): self._traced(partial(self._verify, mode, inputs))
            for mode in modes
            for grouped, inputs in of_inputs.items()
            if inputs is not None
        }
        kinds = self._traced_kinds() if traced else []
        self.prefill_steps = {kind: self._traced_prefill(kind) for kind in kinds}
        self._compiled: set[Hashable] = set()  # kinds of work that ran once
        self._pending: deque[PendingRead] = deque()
        self._logits: list[ttnn.Tensor] = []
        self._newest: Optional[TracedStep] = None  # the step that was launched last

    @classmethod
    def load(
        cls,
        mesh_device: ttnn.MeshDevice,
        source: TensorSource | Mapping[str, torch.Tensor],
        config: QwenConfig,
        recipe: Recipe,
        *,
        users: int,
        max_seq_len: int,
        block: int = BLOCK,
        blocks: Optional[int] = None,
        traced: bool,
        queues: int = 1,
        speculate: int = 1,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> "Replica":
        """Load a model for `users` sequences of up to max_seq_len tokens, with its caches.

        - source: a Checkpoint, a state dict, or an open_checkpoint result (loads through its tile cache).
        - block: tokens in a block of the cache.
        - blocks: blocks of the cache; default: enough for all users' contexts.
        - speculate: slots that the model gets for each user, up to 32 in all.
        - progress: as in load_model.

        UserError, before a weight is read: the DRAM of the chips is too small.
        """
        plan = ParallelPlan.make(config, chips_in_row(mesh_device))
        check_block(block)
        blocks = blocks_for(users, max_seq_len, block) if blocks is None else blocks
        if blocks < table_width(max_seq_len, block):
            raise UserError(
                f"a cache of {blocks} blocks of {block} tokens cannot hold one text of {max_seq_len} tokens: it takes "
                f"{table_width(max_seq_len, block)} blocks"
            )
        budget = memory_budget(config, plan, recipe, max_seq_len, blocks, block)
        smaller = smaller_sizes(
            config, plan, recipe, users, max_seq_len, block, free_dram(mesh_device)
        )
        check_fits(mesh_device, budget, smaller)
        size = dict(batch=min(users * speculate, MAX_USERS), max_seq_len=max_seq_len)
        model = load_model(source, config, mesh_device, recipe, **size, progress=progress)
        caches = allocate_caches(mesh_device, model.config, blocks, block)
        return cls(model, caches, traced=traced, queues=queues, users=users, speculate=speculate)

    @property
    def groups(self) -> int:
        """Sequences that a grouped verify step holds; 0: there is no such step."""
        grouped = self.inputs.grouped
        return 0 if grouped is None else grouped.group_tables.shape[0]

    # ---- launch

    def prefill(self, batch: PrefillBatch, *, traced: bool = True) -> None:
        """Launch a prefill batch: fill the caches, and sample for each prompt that ends in it.

        `read_tokens` returns the tokens by slot; a batch in which no prompt ends has no tokens.
        traced: False runs op by op even where a trace exists.
        """
        values = prefill_inputs(batch, self.block, self.width, self.model.config.key_table)
        host = values.to_host(self.mesh_device)
        kind = batch.kind
        self._release_traces_before_compiling(kind)
        if kind.samples and self.inputs.mode in SAMPLED_AGAIN:
            self._release_traces_before_compiling(("prefill", self.inputs.mode))
        if traced and kind in self.prefill_steps:
            prefill = self.prefill_steps[kind]
            self.queues.write(list(zip(host, prefill.inputs, strict=True)))
            self._finish_prefill(self._run(prefill.step, traced=True), kind)
            return
        inputs = host.to_device(self.mesh_device)
        step = self._traced(lambda: self._prefill(inputs, kind))
        self._finish_prefill(self._run(step, traced=False), kind)
        for tensor in inputs:
            ttnn.deallocate(tensor)

    def launch_decode(self, *, traced: bool = True) -> None:
        """Launch a step: one token of each slot. traced: as in `prefill`."""
        mode = self.inputs.mode
        self._release_traces_before_compiling(mode)
        self._start_read(self._run(self.decode_steps[mode], traced=traced and self.traced))

    def launch_verify(self, *, grouped: bool = False, traced: bool = True) -> None:
        """Launch a step over several tokens of a sequence, one a slot. grouped: as they were written.

        The device inputs were just written with their `writes`. They are written again before the
        next step, because the host decides which tokens stay.
        """
        mode = self.inputs.mode
        self._release_traces_before_compiling(("verify", mode, grouped))
        step = self.verify_steps[mode, grouped]
        self._start_read(self._run(step, traced=traced and self.traced))

    def _run(self, step: TracedStep, *, traced: bool) -> list[ttnn.Tensor]:
        """Launch a step. Frees the logits of the step before it, which this step's trace may overwrite."""
        if self._newest is not None:
            self._newest.free_untraced()
        self._newest = step
        return step.run(traced=traced)

    def _prefill(
        self, inputs: PrefillInputs | ChunkedPrefillInputs, kind: PrefillKind
    ) -> list[ttnn.Tensor]:
        if not kind.samples:
            self.model.fill_caches(inputs, self.caches)
            return []
        logits = self.model.forward_prefill(inputs, self.caches)
        # RANDOM samples greedy slots too, so one trace serves both modes.
        self._sample(SamplingMode.RANDOM, logits)
        return logits

    def _finish_prefill(self, logits: list[ttnn.Tensor], kind: PrefillKind) -> None:
        if not kind.samples:
            return
        if self.inputs.mode in SAMPLED_AGAIN:
            # Slots outside the prefill get a token too, so the token counts stay as they are.
            self._sample(self.inputs.mode, logits, record=False)
        self._start_read(logits)

    def _decode(self, mode: SamplingMode) -> list[ttnn.Tensor]:
        logits = self.model.forward_decode(self.inputs.decode, self.caches)
        self._sample(mode, logits)
        self.inputs.decode.advance(centered_keys=self.model.has_centered_keys)
        return logits

    def _verify(self, mode: SamplingMode, inputs: VerifyInputs) -> list[ttnn.Tensor]:
        logits = self.model.forward_decode(inputs, self.caches)
        self._sample(mode, logits, record=False)
        return logits

    def _sample(self, mode: SamplingMode, logits: list[ttnn.Tensor], *, record=True) -> None:
        """Write each slot's sampled token into the step's tokens. record: into the token counts, too."""
        sampler, controls = self.model.sampler, self.inputs.controls
        tokens = self.inputs.decode.tokens
        if mode is SamplingMode.GREEDY:
            sampler.sample_greedy(logits, tokens)
        elif mode is SamplingMode.RANDOM:
            sampler.sample_random(logits, controls, tokens)
        else:
            penalties, full = self.model.penalties, mode is SamplingMode.FULL
            sample = sampler.sample_full if full else sampler.sample_penalized
            sample(logits, controls, penalties, tokens, record=record)

    def _release_traces_before_compiling(self, kind: Hashable) -> None:
        """Release all traces before a kind of work compiles; they are captured again when used.

        A compiled program keeps semaphores in L1 and kernels, in memory that a trace may use for
        its temporaries: the next replay would overwrite them.
        """
        if kind not in self._compiled:
            self.close()
            self._compiled.add(kind)

    def _start_read(self, logits: list[ttnn.Tensor]) -> None:
        """Start the copy of the token ids (128 bytes) to the host."""
        self._logits = logits
        self._pending.append(self.queues.read(self._tokens))

    # ---- read

    @property
    def in_flight(self) -> int:
        """Steps and sampling prefills that were launched and not read."""
        return len(self._pending)

    def read_tokens(self) -> list[int]:
        """Wait for the oldest unread launch; return its 32 token ids, one a slot."""
        return token_ids(self.pop_pending())

    def pop_pending(self) -> PendingRead:
        """Return the pending read of the oldest unread launch, for `token_ids`."""
        return self._pending.popleft()

    def read_logits(self) -> torch.Tensor:
        """Return the logits [32, vocab_size] of the newest launch; the next launch overwrites them."""
        return self.model.read_logits(self._logits)

    def close(self) -> None:
        """Release the traces. The model's tensors are freed with the mesh."""
        prefills = (prefill.step for prefill in self.prefill_steps.values())
        for step in (*self.decode_steps.values(), *self.verify_steps.values(), *prefills):
            step.release()

    def reset(self) -> None:
        """After an error: forget the launches in flight, and capture traces again."""
        self._pending.clear()
        self.inputs.reset()
        self.close()

    # ---- traces

    def _traced(self, step: Callable[[], list[ttnn.Tensor]]) -> TracedStep:
        return TracedStep(self.mesh_device, step)

    def _traced_kinds(self) -> list[PrefillKind]:
        """Return the kinds of prefill that have a trace: as many as the mesh's trace region holds beside the steps."""
        view = ttnn.get_memory_view(self.mesh_device, ttnn.BufferType.TRACE)
        # A mesh without a region keeps traces in free DRAM.
        region = view.num_banks * view.total_bytes_per_bank or TRACE_REGION_BYTES
        steps = len(self.decode_steps) + len(self.verify_steps) * (self.speculate > 1)
        fitting = traces_that_fit(region, self.model.prefill_prices.operations)
        kinds = prefill_kinds(self.model.max_prefill_rows, self.batch)
        return kinds[: max(0, fitting - steps)]

    def _traced_prefill(self, kind: PrefillKind) -> TracedPrefill:
        values = blank_inputs(kind, self.block, self.width, self.model.config.key_table)
        inputs = values.to_host(self.mesh_device).to_device(self.mesh_device)
        return TracedPrefill(inputs, self._traced(lambda: self._prefill(inputs, kind)))


def token_ids(pending: PendingRead) -> list[int]:
    """Wait for a pending read; return its 32 token ids, one a slot."""
    return ttnn.to_torch(pending.get()).flatten().tolist()

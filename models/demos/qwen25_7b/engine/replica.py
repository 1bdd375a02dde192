"""Replica: one model on its row of chips, with its caches and its device inputs."""

from collections import deque
from functools import partial
from typing import Any, Mapping, Optional, Sequence

import torch
import ttnn

from ..config import DecoderConfig, Recipe
from ..plans.blocks import BLOCK, blocks_for, check_block, table_width
from ..plans.memory_budget import memory_budget, smaller_sizes
from ..plans.parallel_plan import MAX_USERS
from ..tt.attention import TtKVCache, allocate_caches
from ..tt.inputs import AnyPrefillInputs, DecodeInputs, VerifyInputs
from ..tt.mesh import traces_available
from ..tt.model_config import TtModelConfig
from ..tt.placement import check_fits, free, free_dram
from ..tt.transformer import TtTransformer
from ..weights.cache import CachedCheckpoint, packed_weights
from ..weights.checkpoint import Checkpoint
from ..weights.model_weights import TensorSource
from .input_batch import DeviceInputs
from .prefill_batch import PrefillBatch, PrefillKind, Prompt, blank_batch, pack_prompts, prefill_inputs, prefill_kinds
from .sampling import SamplingMode
from .trace import PendingRead, Queues, Traces, traces_that_fit

# modes that a prefill's trace lacks: they sample its logits after it
SEPARATE_SAMPLING = SamplingMode.PENALIZED, SamplingMode.FULL


class Replica:
    """Launches prefill batches and decode steps, and reads their tokens apart from the launch.

    All replicas of a mesh therefore work at once, and a step runs while the step before it is read. Each
    launch samples a token for every slot on the chips. The replica keeps the logits of that launch.

    - caches: one a layer.
    - traced: whether the mesh has traces. Slow dispatch and a mesh without a trace region have none.
    - queues: command queues that the mesh was opened with.
    - users: sequences at once; default the model's slots.
    - speculate: tokens of a sequence in a verify step; each takes a slot.
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
        self.slots = model.model_config.decode.slots
        self.speculate = speculate
        self.users = self.slots if users is None else users
        self.block = caches[0].block
        self.blocks = caches[0].shape[0]
        self.width = table_width(model.model_config.max_seq_len, self.block)
        self.queues = Queues(self.mesh_device, queues, events=traced)
        # Everything permanent is allocated here, before a trace is captured: a replay writes to
        # memory that was free at its capture.
        self.inputs = DeviceInputs(model, self.queues, self.width, self.block, speculate)
        # Every chip holds the same tokens; one chip's are read.
        self._tokens = ttnn.get_device_tensors(self.inputs.decode.tokens)[0]
        self.traces = Traces(self.mesh_device, enabled=traced)
        self._prefill_inputs = {
            kind: self._host_inputs(blank_batch(kind)).to_device(self.mesh_device)
            for kind in (self._traced_kinds() if traced else ())
        }
        self._pending: deque[PendingRead] = deque()
        self._logits: list[ttnn.Tensor] = []

    @classmethod
    def load(
        cls,
        mesh_device: ttnn.MeshDevice,
        source: TensorSource | Mapping[str, torch.Tensor],
        config: DecoderConfig,
        recipe: Recipe,
        *,
        users: int = 1,
        max_seq_len: int = 1024,
        block: int = BLOCK,
        traced: bool = True,
        queues: int = 1,
        speculate: int = 1,
    ) -> "Replica":
        """Load a model with caches for `users` sequences of up to max_seq_len tokens.

        source: a Checkpoint, a state dict, or an open_checkpoint result, whose packed weights come from its cache.
        block: tokens in a block of the cache. UserError, before a weight is read: the DRAM of the chips is too small.
        """
        check_block(block)
        slots = min(users * speculate, MAX_USERS)
        model_config = TtModelConfig.make(mesh_device, config, recipe, min_slots=slots, max_seq_len=max_seq_len)
        blocks = blocks_for(users, max_seq_len, block)
        smaller = smaller_sizes(model_config, users, max_seq_len, block, free_dram(mesh_device))
        check_fits(mesh_device, memory_budget(model_config, max_seq_len, blocks, block), smaller)
        model = TtTransformer(mesh_device, packed_weights(source, model_config), model_config)
        caches = allocate_caches(mesh_device, model_config, blocks, block)
        return cls(model, caches, traced=traced, queues=queues, users=users, speculate=speculate)

    @property
    def groups(self) -> int:
        """Sequences that a grouped verify step holds; 0: there is no such step."""
        grouped = self.inputs.grouped
        return 0 if grouped is None else grouped.group_tables.shape[0]

    # ---- launch

    def batches(self, prompts: Sequence[Prompt]) -> list[PrefillBatch]:
        """Return the prefill batches of these prompts, in the order of their launch."""
        return pack_prompts(prompts, self.model.max_prefill_rows, self.block)

    def prefill(self, batch: PrefillBatch, mode: SamplingMode = SamplingMode.GREEDY) -> None:
        """Launch a prefill batch: fill the caches, and sample for each prompt that ends in it.

        `read_tokens` returns the tokens by slot; a batch in which no prompt ends has no tokens. A batch that samples
        overwrites the tokens of all 32 slots: write_slots comes before the next step. mode: as in launch_decode.
        """
        kind = batch.kind
        separate = kind.samples and mode in SEPARATE_SAMPLING
        if separate:
            self.traces.release_unless_compiled(("prefill", mode))
        host = self._host_inputs(batch)
        if self.traces.enabled and kind in self._prefill_inputs:
            inputs = self._prefill_inputs[kind]
            self.queues.write(zip(host, inputs, strict=True))
            logits = self.traces.run(kind, partial(self._prefill, inputs, kind))
        else:
            inputs = host.to_device(self.mesh_device)
            logits = self.traces.run(kind, partial(self._prefill, inputs, kind), traced=False)
            free(*inputs)
        if separate:
            # Slots outside the prefill get a token too, so the token counts stay as they are.
            self._sample(mode, logits, record=False)
            self.traces.compiled.add(("prefill", mode))
        if kind.samples:
            self._start_read(logits)

    def prefill_logits(self, prompts: Sequence[Prompt]) -> torch.Tensor:
        """Prefill the prompts of slots 0, 1, ...; return the logits [prompts, vocab_size] float32 after each."""
        logits = torch.zeros(len(prompts), self.model.model_config.dims.vocab_size)
        for batch in self.batches(prompts):
            self.prefill(batch)
            if slots := batch.sampled_slots:
                self.read_tokens()
                logits[slots] = self.read_logits()[slots].float()
        return logits

    def compile_prefill(self, batch: PrefillBatch) -> None:
        """Compile the programs of a kind of batch by one layer of each kind. What it computes means nothing."""
        inputs = self._host_inputs(batch).to_device(self.mesh_device)

        def compile_and_sample() -> list[ttnn.Tensor]:
            logits = self.model.compile_prefill(inputs, self.caches)
            self._sample(SamplingMode.RANDOM, logits)
            return logits

        self.traces.run(batch.kind, compile_and_sample, traced=False)
        free(*inputs)

    def capture_prefill(self, kind: PrefillKind) -> None:
        """Capture the trace of a kind of batch that has run, if it gets one."""
        inputs = self._prefill_inputs.get(kind)
        if inputs is not None:
            self.traces.capture(kind, partial(self._prefill, inputs, kind))

    def launch_decode(self, mode: SamplingMode = SamplingMode.GREEDY) -> None:
        """Launch a step: one token of each slot. mode: of the sampling parameters that were written last."""
        self._start_read(self.traces.run(mode, partial(self._step, mode, self.inputs.decode)))

    def launch_verify(self, mode: SamplingMode = SamplingMode.GREEDY, *, grouped: bool = False) -> None:
        """Launch a step over several tokens of a sequence, one a slot. grouped: as they were written.

        The device inputs were just written with their `writes`. They are written again before the
        next step, because the host decides which tokens stay.
        """
        inputs = self.inputs.grouped if grouped else self.inputs.verify
        kind = "verify", mode, grouped
        self._start_read(self.traces.run(kind, partial(self._step, mode, inputs)))

    def _prefill(self, inputs: AnyPrefillInputs, kind: PrefillKind) -> list[ttnn.Tensor]:
        if not kind.samples:
            self.model.fill_caches(inputs, self.caches)
            return []
        logits = self.model.forward_prefill(inputs, self.caches)
        # RANDOM samples greedy slots too, so one trace serves both modes.
        self._sample(SamplingMode.RANDOM, logits)
        return logits

    def _step(self, mode: SamplingMode, inputs: DecodeInputs) -> list[ttnn.Tensor]:
        verifies = isinstance(inputs, VerifyInputs)  # the host then says which tokens stay
        logits = self.model.forward_decode(inputs, self.caches)
        self._sample(mode, logits, record=not verifies)
        if not verifies:
            inputs.advance(centered_keys=self.model.has_centered_keys)
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
        return self.pop_pending().token_ids()

    def pop_pending(self) -> PendingRead:
        """Return the pending read of the oldest unread launch."""
        return self._pending.popleft()

    def read_logits(self) -> torch.Tensor:
        """Return the logits [32, vocab_size] of the newest launch; the next launch overwrites them."""
        return self.model.read_logits(self._logits)

    def close(self) -> None:
        """Release the traces. The model's tensors are freed with the mesh."""
        self.traces.release()

    def reset(self) -> None:
        """After an error: wait for what the chips still run, forget it, and capture traces again."""
        ttnn.synchronize_device(self.mesh_device)  # reads in flight write to host memory
        self._pending.clear()
        self.close()

    def _traced_kinds(self) -> list[PrefillKind]:
        """Return the kinds of prefill that have a trace: as many as the trace region holds beside those of steps."""
        # Token counts belong to a slot, so no verify step samples with penalties.
        verify_steps = (len(SamplingMode) - 1) * (1 + (self.inputs.grouped is not None))
        steps = len(SamplingMode) + verify_steps * (self.speculate > 1)
        fitting = traces_that_fit(self.mesh_device, self.model.model_config.dims.num_hidden_layers)
        return prefill_kinds(self.model.max_prefill_rows, self.slots)[: max(0, fitting - steps)]

    def _host_inputs(self, batch: PrefillBatch) -> AnyPrefillInputs:
        return prefill_inputs(batch, self.block, self.model.model_config).to_host(self.mesh_device)


def load_replicas(
    devices: Sequence[ttnn.MeshDevice],
    checkpoint: Checkpoint | CachedCheckpoint,
    recipe: Recipe,
    *,
    users: int,
    **options: Any,
) -> list[Replica]:
    """A replica on each device, together for `users` sequences. options: as in Replica.load."""
    options |= dict(traced=traces_available())
    shares = [len(range(i, users, len(devices))) for i in range(len(devices))]
    return [
        Replica.load(device, checkpoint, checkpoint.config, recipe, users=share, **options)
        for device, share in zip(devices, shares)
    ]

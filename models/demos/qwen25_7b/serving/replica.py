"""Replica: one model on its row of chips, with its caches, the tensors that its steps read and the traces that run them."""

from collections import deque
from functools import partial
from typing import Callable, Mapping, NamedTuple, Optional, Sequence

import torch
import ttnn

from models.common.errors import UserError
from models.demos.qwen25_7b.config import MAX_USERS, ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.config.sampling import CANDIDATES, Sampling, Seen
from models.demos.qwen25_7b.loading.load import load_model
from models.demos.qwen25_7b.plans.blocks import (
    BLOCK,
    NOWHERE,
    attention_table,
    blocks_for,
    check_block,
    continued_width,
    table_width,
)
from models.demos.qwen25_7b.plans.grids import TILE
from models.demos.qwen25_7b.plans.memory_budget import check_fits, memory_budget
from models.demos.qwen25_7b.serving.choosing import Choosing, choose_again
from models.demos.qwen25_7b.serving.passes import Pass, PassValues
from models.demos.qwen25_7b.serving.trace import PendingRead, Queues, TracedStep
from models.demos.qwen25_7b.tt.inputs import ContinuedInputs, DecodeInputs, PromptInputs, VerifyInputs
from models.demos.qwen25_7b.tt.kv_cache import TtKVCache, allocate_caches
from models.demos.qwen25_7b.tt.placement import chips_in_row, host_replicated
from models.demos.qwen25_7b.tt.rotary import rotary_rows
from models.demos.qwen25_7b.tt.sampler import SamplingControls, host_controls, host_noise
from models.demos.qwen25_7b.tt.transformer import TtTransformer
from models.demos.qwen25_7b.weights import TensorSource

TRACED_ROWS = (128, 512)  # passes that replay a trace; others run op by op


class Work(NamedTuple):
    """A kind of pass: how many rows, whether it goes on from what the caches hold, whether anybody's logits are wanted."""

    rows: int
    continued: bool
    answered: bool


class TracedPass(NamedTuple):
    inputs: PromptInputs | ContinuedInputs
    step: TracedStep


class Replica:
    """Steps and passes are launched and read apart, so that all replicas of a mesh work at once, and one ahead of its reader.

    Each gives a token id a row of the batch, chosen on the chips, and leaves the logits that it was chosen from.
    caches: one a layer, made for this model. users: texts at once (default: as many as the model has rows). speculate: tokens of
    a text that a step may verify (speculation.py). traced: replay captured steps, unless a call says otherwise (not possible in
    slow dispatch, nor without a trace region). queues: command queues that the mesh was opened with.
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
        self.model, self.mesh_device, self.caches, self.traced = model, model.mesh_device, caches, traced
        self.batch, self.speculate = model.decode.batch, speculate
        self.users = self.batch if users is None else users
        self.block, self.blocks = caches[0].block, caches[0].shape[0]
        self.width = table_width(model.max_seq_len, self.block)
        self.queues = Queues(self.mesh_device, queues, events=traced)
        # All that stays is allocated here, before a trace is captured: a replay writes where memory was free at its capture.
        nothing = attention_table([], self.width)
        idle = [0] * self.batch, [NOWHERE] * self.batch, torch.stack([nothing] * self.batch)
        self.inputs = DecodeInputs(*self._on_device(self._host_inputs(*idle)))
        nowhere = [self._host_positions([NOWHERE] * self.batch)] * speculate
        self.verify_inputs = VerifyInputs(*self.inputs, writes=tuple(self._on_device(nowhere)))
        noise = host_noise(self.mesh_device, torch.zeros(MAX_USERS, CANDIDATES))
        self.controls = SamplingControls(*self._on_device((*host_controls(self.mesh_device, []), noise)))
        self._tokens = ttnn.get_device_tensors(self.inputs.tokens)[0]  # every chip holds the same: one is read
        self._choosing = Choosing.LIKELIEST
        self.decode = {how: TracedStep(self.mesh_device, partial(self._decode, how)) for how in Choosing}
        # What penalties keep is of a row, not of a text: texts that have some are not guessed at.
        unpenalised = (Choosing.LIKELIEST, Choosing.DRAWN)
        self.verify = {how: TracedStep(self.mesh_device, partial(self._verify, how)) for how in unpenalised}
        self.passes = {work: self._traced_pass(work) for work in self._works() if traced}
        self._compiled: set = set()  # kinds of work that ran once
        self._pending: deque[PendingRead] = deque()
        self._logits: list[ttnn.Tensor] = []
        self._untraced: list[ttnn.Tensor] = []  # the logits of the last pass that replays no trace

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
        """A model for `users` texts of up to max_seq_len tokens at once, with its caches, on a row of chips.

        source: what open_checkpoint gave, loaded through its tile cache; or a Checkpoint, or a state dict. block, blocks: tokens in a cache's block, and how many there are; default: as
        many as all users need to fill their contexts. speculate: the model gets as many rows for each user, up to 32 in all.
        progress: as in load_model. UserError, before a weight is read, if the whole does not fit the chips' DRAM.
        """
        plan = ParallelPlan.make(config, chips_in_row(mesh_device))
        check_block(block)
        blocks = blocks_for(users, max_seq_len, block) if blocks is None else blocks
        if blocks < table_width(max_seq_len, block):
            raise UserError(
                f"a cache of {blocks} blocks of {block} tokens cannot hold one text of {max_seq_len} tokens: it takes "
                f"{table_width(max_seq_len, block)} blocks"
            )
        check_fits(mesh_device, memory_budget(config, plan, recipe, max_seq_len, blocks, block))
        rows = min(users * speculate, MAX_USERS)
        model = load_model(source, config, mesh_device, recipe, batch=rows, max_seq_len=max_seq_len, progress=progress)
        caches = allocate_caches(mesh_device, config, plan, recipe, blocks, block)
        return cls(model, caches, traced=traced, queues=queues, users=users, speculate=speculate)

    # ---- passes over prompts

    def prefill(self, work: Pass, *, traced: bool = True) -> None:
        """Fill the caches with the pass's pieces; `read` gives what follows those that end in it, at their rows of the batch.

        A pass that answers nobody has nothing to read. traced: False runs it op by op, whatever was captured.
        """
        values = self._host_pass(PassValues.of(work, self.block, self.width))
        kind = Work(work.rows, work.continued, bool(work.answered))
        self._about_to_run(kind)
        if kind.answered and self._choosing is Choosing.PENALISED:
            self._about_to_run(choose_again)
        if traced and kind in self.passes:
            replayed = self.passes[kind]
            self.queues.write(list(zip(values, replayed.inputs, strict=True)))
            self._passed(replayed.step.run(traced=True), kind.answered)
            return
        inputs = _inputs(kind)(*self._on_device(values))
        pieces = self._prefill(inputs, kind.answered)
        self._passed(pieces, kind.answered)
        for tensor in (*inputs, *self._untraced):
            ttnn.deallocate(tensor)
        self._untraced = pieces

    def _prefill(self, inputs: PromptInputs | ContinuedInputs, answered: bool) -> list[ttnn.Tensor]:
        if not answered:
            self.model.fill_prefill(inputs, self.caches)
            return []
        pieces = self.model.forward_prefill(inputs, self.caches)
        # greedy rows are drawn, too: one trace is there for all
        Choosing.DRAWN.of_step(self.model, pieces, self.controls, self.inputs.tokens)
        return pieces

    def _passed(self, pieces: list[ttnn.Tensor], answered: bool) -> None:
        if answered and self._choosing is Choosing.PENALISED:
            choose_again(self.model, pieces, self.controls, self.inputs.tokens)
        self._started(pieces, answered)

    # ---- steps

    def place(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        page_table: torch.Tensor,
        writes: Sequence[Sequence[int]] = (),
    ) -> None:
        """Where the next step starts: tokens[u] goes to positions[u] for each row of the batch; NOWHERE: the row is idle.

        page_table: [batch, width] int32. Needed when texts come or go; else the chips go on by themselves, each text at
        its next position, with the token that was chosen for it, and idle rows stay idle. writes: for `launch_verify`.
        """
        placed = list(zip(self._host_inputs(tokens, positions, page_table), self.inputs, strict=True))
        self.queues.write(placed + list(zip(map(self._host_positions, writes), self.verify_inputs.writes)))

    def place_tables(self, page_table: torch.Tensor) -> None:
        """The texts have grown into other blocks; nothing else changes."""
        table = host_replicated(page_table, self.mesh_device, ttnn.int32)
        self.queues.write([(table, self.inputs.page_table)])

    def place_sampling(self, samplings: Sequence[Sampling]) -> None:
        """How row u of the batch is sampled from now on. Where all are greedy, steps leave out what drawing takes."""
        self._choosing = Choosing.of(samplings)
        self.queues.write(list(zip(host_controls(self.mesh_device, samplings), self.controls)))

    def place_seen(self, texts: Mapping[int, Seen]) -> None:
        """What the penalised texts have, by row, all of them: before a pass that answers one, and before a step after a pass or
        where one came or moved. Steps go on from there by themselves. [32, vocabulary] twice, 2 bytes each."""
        penalties = self.model.penalties
        self.queues.write(list(zip(penalties.host_seen(texts), (penalties.seen, penalties.counts))))

    def place_noise(self, noise: torch.Tensor) -> None:
        """[32, CANDIDATES] for the next step; for greedy rows zeros, as they are from the beginning."""
        self.queues.write([(host_noise(self.mesh_device, noise), self.controls.noise)])

    def place_tokens(self, tokens: Sequence[int]) -> None:
        """The next step's tokens, where they are chosen on the host."""
        self.queues.write([(self._host_tokens(tokens), self.inputs.tokens)])

    def launch(self, *, traced: bool = True) -> None:
        """Start a decode step; `read` waits for it. traced: as in `prefill`."""
        self._about_to_run(self._choosing)
        self._started(self.decode[self._choosing].run(traced=traced and self.traced), answered=True)

    def launch_verify(self, *, traced: bool = True) -> None:
        """Start a step over several tokens of a text, each in a row of its own, just placed with their `writes`; `read` gives
        each row's choice. What comes next is placed again: which tokens are kept is for the host to see."""
        self._about_to_run(("verify", self._choosing))
        self._started(self.verify[self._choosing].run(traced=traced and self.traced), answered=True)

    def _verify(self, how: Choosing) -> list[ttnn.Tensor]:
        pieces = self.model.forward_decode(self.verify_inputs, self.caches)
        how.of_step(self.model, pieces, self.controls, self.inputs.tokens)
        return pieces

    def _decode(self, how: Choosing) -> list[ttnn.Tensor]:
        pieces = self.model.forward_decode(self.inputs, self.caches)
        how.of_step(self.model, pieces, self.controls, self.inputs.tokens)
        ttnn.plus_one(self.inputs.positions, skip_negative_entries=True)
        # An idle row counts up here from 0, where `place` put it: never past a text, which began there or later.
        ttnn.plus_one(self.inputs.rotary_positions)
        return pieces

    # ---- what comes out

    @property
    def in_flight(self) -> int:
        """Steps and answering passes launched and not read."""
        return len(self._pending)

    def read(self) -> list[int]:
        """32 token ids of the oldest step or pass that was not read."""
        return token_ids(self.take())

    def take(self) -> PendingRead:
        """The same, on its way: for who waits elsewhere, with token_ids."""
        return self._pending.popleft()

    def logits(self) -> torch.Tensor:
        """[32, vocab_size] that the newest step or pass chose from; the next one overwrites them."""
        return self.model.read_logits(self._logits)

    def close(self) -> None:
        """Release the traces; the model's tensors go with the mesh."""
        steps = (*self.decode.values(), *self.verify.values(), *(traced.step for traced in self.passes.values()))
        for step in steps:
            step.release()

    def forget(self) -> None:
        """After a fault: what was in flight is lost, and traces are captured anew."""
        self._pending.clear()
        self.close()

    def _about_to_run(self, kind) -> None:
        """Nothing is compiled while a trace exists: what a program keeps for good (semaphores in L1, its kernels) would lie
        where the trace has its temporaries, and its next replay would overwrite it. Traces are captured again when used."""
        if kind not in self._compiled:
            self.close()
            self._compiled.add(kind)

    def _started(self, pieces: list[ttnn.Tensor], answered: bool) -> None:
        """Token ids are on their way already: 128 bytes."""
        if answered:
            self._logits = pieces
            self._pending.append(self.queues.read(self._tokens))

    # ---- tensors

    def _works(self) -> list[Work]:
        """The kinds of passes that are traced. Only whole chunks answer nobody: more of their text follows."""
        longest = self.model.longest_pass
        rows = sorted({min(rows, longest) for rows in TRACED_ROWS} | {longest})
        works = [Work(r, continued, True) for r in rows for continued in (False, True)]
        return works + [Work(longest, continued, False) for continued in (False, True)]

    def _traced_pass(self, kind: Work) -> TracedPass:
        blank = torch.zeros(1, 1, 1, kind.rows), torch.zeros(1, kind.rows)
        table = torch.full((1, -(-kind.rows // self.block)), -1)
        if kind.continued:
            where = torch.zeros(1), torch.zeros(1, continued_width(self.width, kind.rows, self.block))
        else:
            where = (torch.zeros(kind.rows // TILE + 1),)
        values = PassValues(*blank, table, torch.zeros(1, MAX_USERS), where)
        inputs = _inputs(kind)(*self._on_device(self._host_pass(values)))
        step = TracedStep(self.mesh_device, lambda: self._prefill(inputs, kind.answered))
        return TracedPass(inputs, step)

    def _on_device(self, tensors: Sequence[ttnn.Tensor]) -> list[ttnn.Tensor]:
        return [ttnn.to_device(t, self.mesh_device, memory_config=ttnn.DRAM_MEMORY_CONFIG) for t in tensors]

    def _host_pass(self, values: PassValues) -> list[ttnn.Tensor]:
        unsigned = [values.tokens, values.positions], [values.fill_table], [values.rows], values.where
        dtypes = ttnn.uint32, ttnn.int32, ttnn.uint32, ttnn.int32
        return [
            host_replicated(value.int(), self.mesh_device, dtype)
            for group, dtype in zip(unsigned, dtypes)
            for value in group
        ]

    def _host_inputs(self, tokens, positions, page_table: torch.Tensor) -> tuple[ttnn.Tensor, ...]:
        """The tensors of DecodeInputs, in its order, on the host."""
        rotary = rotary_rows(torch.tensor(positions, dtype=torch.int32).clamp(min=0), self.model.decode)
        others = ((rotary, ttnn.uint32), (page_table, ttnn.int32))
        return (
            self._host_tokens(tokens),
            self._host_positions(positions),
            *(host_replicated(v, self.mesh_device, dtype) for v, dtype in others),
        )

    def _host_positions(self, positions: Sequence[int]) -> ttnn.Tensor:
        return host_replicated(torch.tensor(positions, dtype=torch.int32), self.mesh_device, ttnn.int32)

    def _host_tokens(self, tokens: Sequence[int]) -> ttnn.Tensor:
        row = torch.zeros(1, 1, 1, MAX_USERS, dtype=torch.int32)
        row[..., : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        return host_replicated(row, self.mesh_device, ttnn.uint32)


def token_ids(pending: PendingRead) -> list[int]:
    """32 token ids, waited for."""
    return ttnn.to_torch(pending.get()).flatten().tolist()


def _inputs(kind: Work) -> type:
    return ContinuedInputs if kind.continued else PromptInputs

"""Generator: prompts in, token ids out as they come. The decode loop of all replicas is `Generator._serve`."""

from collections import Counter, abc, deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from traceback import clear_frames
from typing import Collection, Iterator, Optional

from ..config.sampling import GREEDY, SamplingParams
from ..errors import UserError
from ..text.request import check_request
from .input_batch import InputBatch
from .prefill_batch import PrefillBatch
from .replica import Replica
from .sampling import sample_tokens
from .scheduler import BlockPool, Scheduler, Sequence
from .speculation import Draft, Speculation

STEPS_AHEAD = 2  # decode steps in flight where the chips sample: one computes, one waits


@dataclass(frozen=True)
class Token:
    """One new token of one user."""

    user: int
    id: int
    last: bool  # a stop token, or the last of max_new_tokens


class ReplicaEngine:
    """The steps of one replica: schedule, write the inputs, launch, read, append the tokens.

    With `on_host` the host samples every token. Otherwise it samples where the chips do not support the sampling
    parameters. A replica with `speculate` verifies draft tokens. Each such step is read before the next is prepared.
    """

    def __init__(self, replica: Replica, *, on_host: bool = False):
        self.replica = replica
        self.pool = BlockPool(replica.blocks, replica.block)
        self.scheduler = Scheduler(self.pool, slots=replica.slots, max_sequences=replica.users)
        self.input_batch = InputBatch(replica.inputs, on_host=on_host)
        self.stats: Counter[str] = Counter()
        self._speculation: Optional[Speculation] = None
        if replica.speculate > 1 and not on_host:
            self._speculation = Speculation(
                slots=replica.slots,
                max_tokens=replica.speculate,
                groups=replica.groups,
                k_chunk=replica.model.model_config.decode.k_chunk(replica.width * replica.block),
            )
        self._drafts: list[Draft] = []  # what the verify step in flight verifies

    @property
    def running(self) -> list[Sequence]:
        return list(self.scheduler.running)

    def finish(self, sequence: Sequence) -> None:
        self.scheduler.finish(sequence)
        self.input_batch.valid = False

    def launch_prefill(self, batch: PrefillBatch) -> None:
        slots = self.scheduler.slots
        mode = self.input_batch.write_prefill(self.running, [slots[slot] for slot in batch.sampled_slots])
        self.replica.prefill(batch, mode)
        for chunk in batch.chunks:
            self.scheduler.launched(slots[chunk.prompt.slot], chunk.end)

    def read_prefill(self, batch: PrefillBatch) -> list[Sequence]:
        """Append first tokens. Return the sequences with prompts that end in the batch."""
        sequences = [self.scheduler.slots[slot] for slot in batch.sampled_slots]
        for sequence in sequences:
            self.pool.register_prefix(sequence.tokens, sequence.blocks)
        if sequences:
            self._append_tokens(sequences)
        return sequences

    def launch_steps(self, max_steps: int) -> None:
        """Launch steps until max_steps or STEPS_AHEAD are in flight.

        Where the chips sample, the next step needs nothing from the host, so it runs while this one's tokens are
        read. Before new values are written for all slots, the steps in flight are read.
        """
        running = self.running
        on_host = any(map(self.input_batch.samples_on_host, running))
        ahead = 1 if self._speculation or on_host else STEPS_AHEAD
        while self.replica.in_flight < min(max_steps, ahead) and (self.input_batch.valid or not self.replica.in_flight):
            if self._speculation:
                self._drafts = self._speculation.propose(running)
            if self._drafts:
                grouped = self._speculation.grouped(running)
                mode = self.input_batch.write_drafts(self._drafts, grouped=grouped)
                self.replica.launch_verify(mode, grouped=grouped)
                return
            self.replica.launch_decode(self.input_batch.write_step(running, self.replica.in_flight))

    def read_step(self) -> list[Sequence]:
        """Return the running sequences with their tokens of the oldest step in flight."""
        running = self.running
        self._append_tokens(running)
        self.stats["steps"] += len(running)
        self.stats["tokens"] += sum(len(sequence.new_tokens) for sequence in running)
        self.stats["drafted"] += sum(len(draft.slots) - 1 for draft in self._drafts)
        self._drafts = []
        return running

    def drain(self) -> None:
        """Read the steps in flight and drop their tokens."""
        while self.replica.in_flight:
            self.replica.read_tokens()
            self.input_batch.valid = False

    def _append_tokens(self, sequences: list[Sequence]) -> None:
        """Append each sequence's tokens of the oldest launch in flight."""
        sampled = self.replica.read_tokens()
        new_tokens = {sequence: [sampled[sequence.slot]] for sequence in sequences}
        new_tokens |= {draft.sequence: draft.accept(sampled) for draft in self._drafts}
        on_host = list(filter(self.input_batch.samples_on_host, sequences))
        if on_host:
            logits = self.replica.read_logits()
            next_tokens = [s.next_token(s.slot, len(s.tokens), counted=True) for s in on_host]
            new_tokens |= {s: [token] for s, token in zip(on_host, sample_tokens(logits, next_tokens))}
        for sequence in sequences:
            sequence.append(new_tokens[sequence])


class Generator:
    """Serves prompts with one or more replicas of a model, each on its own chips.

    Prompts wait in a queue until a slot is free. A prompt with a prefix that a replica's cache holds is
    prefilled from the end of that prefix. on_host: the host samples.
    """

    def __init__(self, replicas: abc.Sequence[Replica], *, on_host: bool = False):
        self.replicas = replicas
        self._on_host = on_host
        self._engines = [ReplicaEngine(replica, on_host=on_host) for replica in replicas]
        # Of the call of `generate` that is being served; None: there is none.
        self._waiting: Optional[deque[Sequence]] = None
        self._cancelled: set[int] = set()  # its users

    @property
    def users(self) -> int:
        """Sequences at once."""
        return sum(replica.users for replica in self.replicas)

    @property
    def stats(self) -> Counter[str]:
        """`steps`, `tokens` and `drafted` so far. A decode step counts once for each of its sequences."""
        return sum((engine.stats for engine in self._engines), Counter())

    @property
    def free_blocks(self) -> int:
        """Free blocks of all caches. Between two calls all blocks are free."""
        return sum(engine.pool.num_free for engine in self._engines)

    def generate(
        self,
        prompts: abc.Sequence[abc.Sequence[int]],
        max_new_tokens: int,
        *,
        stop_ids: Collection[int] = (),
        sampling: SamplingParams | abc.Sequence[SamplingParams] = GREEDY,
    ) -> Iterator[Token]:
        """Yield new tokens as they come, stop tokens included; the first one right after the prefill.

        sampling: one for all users, or one a user. Users without a seed get different tokens; users with equal
        seeds and prompts get equal tokens.
        A generator serves one call at a time; read the iterator to the end or close it. An error in a step ends this
        call only. UserError, at once, for a request that the model cannot serve, and while another call runs.
        """
        model_config = self.replicas[0].model.model_config
        check_request(prompts, max_new_tokens, model_config.max_seq_len, vocab_size=model_config.dims.vocab_size)
        params = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else sampling
        if len(params) != len(prompts):
            raise UserError(f"one sampling a user: {len(prompts)} prompts, {len(params)} samplings")
        self._check_idle()
        stop_ids = frozenset(stop_ids)
        waiting = deque(
            Sequence(user, prompt, max_new_tokens, p, stop_ids) for user, (prompt, p) in enumerate(zip(prompts, params))
        )
        return self._serve(waiting)

    def cancel(self, user: int) -> None:
        """End the user's sequence of the current call; its slot is free at the next step."""
        self._cancelled.add(user)

    def close(self) -> None:
        for replica in self.replicas:
            replica.close()

    def _check_idle(self) -> None:
        if self._waiting is not None:
            raise UserError(
                "this generator is in the middle of another call: read its iterator to the end, or close() it, first"
            )

    def _serve(self, waiting: deque[Sequence]) -> Iterator[Token]:
        self._check_idle()  # another call may have begun since `generate` returned
        self._waiting, self._cancelled = waiting, set()
        try:
            with suppress(GeneratorExit):  # the call is closed before its end
                while waiting or any(engine.running for engine in self._engines):
                    yield from self._prefill()
                    for engine in self._engines:  # all replicas work before the first is read
                        if engine.running:
                            engine.launch_steps(max(s.remaining for s in engine.running))
                    for engine in self._engines:
                        if engine.replica.in_flight:
                            yield from self._new_tokens(engine, engine.read_step())
            for engine in self._engines:
                engine.drain()
                for sequence in engine.running:
                    engine.finish(sequence)
        except BaseException as error:
            self._reset(error)
            raise
        self._waiting = None

    def _prefill(self) -> Iterator[Token]:
        """Admit waiting sequences, prefill them, and yield their first tokens."""
        for engine in self._engines:
            while self._waiting and engine.scheduler.has_free_slot and engine.replica.in_flight:
                yield from self._new_tokens(engine, engine.read_step())
        admitted = self._admit()
        queues = [engine.replica.batches([s.to_prefill() for s in new]) for engine, new in admitted.items()]
        for batches in zip_longest(*queues):
            launched = [(e, batch) for e, batch in zip(admitted, batches) if batch is not None]
            for engine, batch in launched:
                engine.launch_prefill(batch)
            for engine, batch in launched:
                yield from self._new_tokens(engine, engine.read_prefill(batch))

    def _admit(self) -> dict[ReplicaEngine, list[Sequence]]:
        """Admit waiting sequences one by one, each to the engine with the fewest."""
        admitted: dict[ReplicaEngine, list[Sequence]] = {}
        # Steps in flight do not know a new sequence, so there must be none.
        idle = [engine for engine in self._engines if not engine.replica.in_flight]
        while self._waiting and (able := [engine for engine in idle if engine.scheduler.has_free_slot]):
            sequence = self._waiting.popleft()
            if sequence.user not in self._cancelled:
                engine = min(able, key=lambda engine: len(engine.running))
                engine.scheduler.admit(sequence)
                admitted.setdefault(engine, []).append(sequence)
        return admitted

    def _new_tokens(self, engine: ReplicaEngine, sequences: list[Sequence]) -> Iterator[Token]:
        """Yield the newest tokens of these sequences; finished and cancelled ones leave their slots."""
        tokens = []
        for sequence in sequences:
            if sequence.user in self._cancelled:
                engine.finish(sequence)
                continue
            *earlier, newest = sequence.new_tokens
            tokens += [Token(sequence.user, token, False) for token in earlier]
            tokens.append(Token(sequence.user, newest, sequence.finished))
            if sequence.finished:
                engine.finish(sequence)
        for token in tokens:
            if token.user not in self._cancelled:  # while the tokens before it were yielded
                yield token

    def _reset(self, error: BaseException) -> None:
        """After an error the contents of the caches and the launches in flight are unknown."""
        clear_frames(error.__traceback__)  # they hold activations in L1 as long as the error lives
        self._engines = [ReplicaEngine(replica, on_host=self._on_host) for replica in self.replicas]
        self._waiting = None
        for replica in self.replicas:
            replica.reset()

"""Generator: prompts in, token ids out, as they come."""

from collections import deque
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Callable, Collection, Iterator, Optional, Sequence

from models.common.errors import UserError
from models.demos.qwen25_7b.config.sampling import GREEDY, Sampling
from models.demos.qwen25_7b.serving.batch import Batch, Text
from models.demos.qwen25_7b.serving.passes import Pass
from models.demos.qwen25_7b.serving.replica import Replica
from models.demos.qwen25_7b.serving.request import check_request
from models.demos.qwen25_7b.serving.speculation import Tally


@dataclass(frozen=True)
class Token:
    """One new token of one user."""

    user: int
    id: int
    last: bool  # a stop token, or the last that was asked for


@dataclass
class _Call:
    """One call of generate that is being served."""

    waiting: deque[Text]
    progress: Callable[[int, int], None]
    prompts: int  # tokens of all prompts
    prefilled: int = 0
    cancelled: set[int] = field(default_factory=set)

    def computed(self, work: Pass) -> None:
        self.prefilled += sum(piece.end - max(piece.first, piece.prompt.start) for piece in work.pieces)
        self.progress(min(self.prefilled, self.prompts), self.prompts)


class Generator:
    """Serves prompts with one or more replicas of a model, each on its own chips.

    Any number of prompts: who finds no free row waits for one. A text that begins as one that a replica's cache still
    holds is prefilled from where they part. on_host: choose tokens on the host.
    """

    def __init__(self, replicas: Sequence[Replica], *, on_host: bool = False):
        self.replicas = replicas
        self._on_host = on_host
        self._batches = [Batch(replica, on_host=on_host) for replica in replicas]
        self._call: Optional[_Call] = None

    @property
    def users(self) -> int:
        """Texts that are written at once."""
        return sum(replica.users for replica in self.replicas)

    @property
    def tally(self) -> Tally:
        """Of the steps of all calls so far."""
        return sum((batch.tally for batch in self._batches), Tally())

    @property
    def idle_blocks(self) -> int:
        """Blocks of all caches that no text holds; all of them between two calls."""
        return sum(batch.pool.free for batch in self._batches)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        *,
        stop_ids: Collection[int] = (),
        sampling: Sampling | Sequence[Sampling] = GREEDY,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Iterator[Token]:
        """New tokens as they come, a prompt's first one right after its prefill; stop tokens are among them.

        sampling: one for all users or one a user. Users without a seed draw from streams of their own; users with the same
        seed and prompt say the same. progress: called with (tokens prefilled, tokens of all prompts).
        A generator serves one call at a time: iterating to the end or closing the iterator leaves it ready for another.
        UserError, at once, for a request that cannot be served, and while another call's iterator is at work. What fails in
        a step ends this call's requests and no others.
        """
        model = self.replicas[0].model
        check_request(prompts, max_new_tokens, model.max_seq_len, vocab_size=model.config.vocab_size, stop_ids=stop_ids)
        samplings = [sampling] * len(prompts) if isinstance(sampling, Sampling) else list(sampling)
        if len(samplings) != len(prompts):
            raise UserError(f"one sampling a user: {len(prompts)} prompts, {len(samplings)} samplings")
        self._check_idle()
        ends = frozenset(stop_ids)
        texts = [Text(user, p, max_new_tokens, s, ends) for user, (p, s) in enumerate(zip(prompts, samplings))]
        return self._serve(_Call(deque(texts), progress, sum(map(len, prompts))))

    def cancel(self, user: int) -> None:
        """Of the call that is being served: the user's text ends where it is, and its row is free at the next step."""
        if self._call is not None:
            self._call.cancelled.add(user)

    def close(self) -> None:
        for replica in self.replicas:
            replica.close()

    def _check_idle(self) -> None:
        if self._call is not None:
            raise UserError(
                "this generator is in the middle of another call: read its iterator to the end, or close() it, first"
            )

    def _serve(self, call: _Call) -> Iterator[Token]:
        self._check_idle()  # another call may have begun since this one was made
        self._call = call
        try:
            while call.waiting or any(batch.texts for batch in self._batches):
                yield from self._prefill(call)
                for batch in self._batches:  # all replicas are under way before the first is read
                    if batch.texts:
                        batch.launch(max(text.left for text in batch.texts))
                for batch in self._batches:
                    if batch.in_flight:
                        yield from self._given(call, batch, batch.read())
                for batch in self._batches:
                    self._make_room(call, batch)
        except GeneratorExit:
            self._end()
            raise
        except BaseException:
            self._begin_anew()
            raise
        self._end()

    def _prefill(self, call: _Call) -> Iterator[Token]:
        """Let in who finds room, and yield their first tokens."""
        for batch in self._batches:
            while call.waiting and batch.has_room and batch.in_flight:
                yield from self._given(call, batch, batch.read())
        plans = [(batch, batch.passes(texts)) for batch, texts in self._admitted(call).items()]
        for round_ in zip_longest(*(passes for _, passes in plans)):
            at_work = [(batch, work) for (batch, _), work in zip(plans, round_) if work is not None]
            for batch, work in at_work:
                batch.run(work)
                call.computed(work)
            for batch, work in at_work:
                yield from self._given(call, batch, batch.answers(work))

    def _admitted(self, call: _Call) -> dict[Batch, list[Text]]:
        """Texts dealt out one by one, each to the batch with the fewest."""
        came: dict[Batch, list[Text]] = {}
        while call.waiting:
            text = call.waiting[0]
            if text.user not in call.cancelled:
                by_company = sorted(self._batches, key=lambda batch: len(batch.texts))
                home = next((batch for batch in by_company if batch.admit(text)), None)
                if home is None:
                    break
                came.setdefault(home, []).append(text)
            call.waiting.popleft()
        return came

    def _given(self, call: _Call, batch: Batch, texts: Sequence[Text]) -> Iterator[Token]:
        """The newest tokens of these texts; who is through leaves."""
        tokens = []
        for text in texts:
            if text.user in call.cancelled:
                batch.leave(text)
                continue
            *earlier, newest = text.new
            tokens += [Token(text.user, token, False) for token in earlier]
            tokens.append(Token(text.user, newest, text.done))
            if text.done:
                batch.leave(text)
        for token in tokens:
            if token.user not in call.cancelled:  # while the tokens before it were given
                yield token

    def _make_room(self, call: _Call, batch: Batch) -> None:
        """Where blocks ran short, the last that came waits until there are some again, and is computed anew then."""
        while (text := batch.crowded()) is not None:
            batch.leave(text)
            call.waiting.appendleft(text)

    def _end(self) -> None:
        for batch in self._batches:
            batch.drain()
            for text in batch.texts:
                batch.leave(text)
        self._call = None

    def _begin_anew(self) -> None:
        """After a fault nothing is known of what was in flight or in the caches."""
        for replica in self.replicas:
            replica.forget()
        self._batches = [Batch(replica, on_host=self._on_host) for replica in self.replicas]
        self._call = None

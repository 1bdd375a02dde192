"""Generator: prompts in, token ids out, step by step."""

from dataclasses import dataclass
from typing import Collection, Iterator, Sequence

import torch

from models.common.errors import UserError
from models.demos.qwen25_7b.config.sampling import CANDIDATES, GREEDY, Sampling
from models.demos.qwen25_7b.plans.decode_plan import MAX_USERS
from models.demos.qwen25_7b.plans.page_plan import NOWHERE
from models.demos.qwen25_7b.serving.noise import gumbel, stream_key
from models.demos.qwen25_7b.serving.replica import Replica
from models.demos.qwen25_7b.serving.request import check_request
from models.demos.qwen25_7b.serving.sampling import choose

AHEAD = 2  # decode steps in flight where the chips sample: one computing, one waiting for it


@dataclass(frozen=True)
class Token:
    """One new token of one user."""

    user: int
    id: int
    last: bool  # a stop token, or the last that was asked for


class _Users:
    """The users of one replica: who they are, their next tokens and positions, and whose turn is over.

    Row r of the replica's batch is user users[r]; keys[r] is what its draws depend on.
    """

    def __init__(self, replica: Replica, users: Sequence[int], samplings: Sequence[Sampling]):
        self.replica, self.users = replica, users
        self.pages = replica.model.pages
        self.samplings = [samplings[user] for user in users]
        self.keys = [stream_key(sampling.seed) for sampling in self.samplings]
        self.drawing = [
            row for row, sampling in enumerate(self.samplings) if not sampling.greedy and not replica.host_logits
        ]
        self.tokens = [0] * replica.batch
        self.positions = [NOWHERE] * replica.batch  # where the next unread step writes
        self.tables = torch.stack([self.pages.decode_table([])] * replica.batch)
        self.moved = True  # whether someone came or went since the device was last told
        if not replica.host_logits:
            replica.place_sampling(self.samplings)

    def prefill(self, row: int, prompt: Sequence[int]) -> int:
        """The token that follows a user's prompt."""
        if row in self.drawing:
            self._place_noise([row], [len(prompt)])
        self.replica.prefill(prompt, self.pages.blocks_of(row, len(prompt)))
        return self._chosen(self.replica.read(), row, len(prompt))

    def enter(self, row: int, token: int, position: int, context: int) -> None:
        """A user's first token is known; it may grow to `context` tokens."""
        self.tokens[row], self.positions[row] = token, position
        self.tables[row] = self.pages.decode_table(self.pages.blocks_of(row, context))

    def leave(self, row: int) -> None:
        """Its row is idle from now on."""
        self.tokens[row], self.positions[row] = 0, NOWHERE
        self.tables[row] = self.pages.decode_table([])
        self.moved = True

    def launch(self, steps: int) -> None:
        """Have up to `steps` steps in flight. Where the chips sample, the next one needs nothing from the host, so it is
        under way while this one's tokens are read; unless users came or went: then all that is in flight is read first.
        """
        ahead = 1 if self.replica.host_logits else AHEAD
        while self.replica.in_flight < min(steps, ahead) and not (self.moved and self.replica.in_flight):
            if self.moved:
                self.replica.place(self.tokens, self.positions, self.tables)
                self.moved = False
            elif self.replica.host_logits:
                self.replica.place_tokens(self.tokens)
            drawing = [row for row in self.drawing if self.positions[row] != NOWHERE]
            # The step writes after those in flight, and draws the token behind what it writes.
            self._place_noise(drawing, [self.positions[row] + self.replica.in_flight + 1 for row in drawing])
            self.replica.launch()

    def read(self, rows: Sequence[int]) -> list[int]:
        """The tokens of these rows from the oldest step in flight."""
        outcome = self.replica.read()
        self.positions = [at if at == NOWHERE else at + 1 for at in self.positions]
        return [self._chosen(outcome, row, self.positions[row]) for row in rows]

    def drain(self) -> None:
        """Read what is in flight and forget it."""
        while self.replica.in_flight:
            self.read([])

    def _chosen(self, outcome: Sequence, row: int, position: int) -> int:
        """The token at `position` of the row's text."""
        token = outcome[row]
        if self.replica.host_logits:
            token = choose(token, self.samplings[row], self.keys[row], position)
        self.tokens[row] = token
        return token

    def _place_noise(self, rows: Sequence[int], positions: Sequence[int]) -> None:
        """For the next step to draw rows[i]'s token at positions[i]."""
        if not rows:
            return
        noise = torch.zeros(MAX_USERS, CANDIDATES)
        noise[list(rows)] = gumbel([self.keys[row] for row in rows], positions, CANDIDATES)
        self.replica.place_noise(noise)


class Generator:
    """Serves prompts with one or more replicas of a model, each on its own chips.

    User u is served by replica u % len(replicas).
    """

    def __init__(self, replicas: Sequence[Replica]):
        self.replicas = replicas
        self.users = sum(replica.batch for replica in replicas)
        self._serving = False

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        *,
        stop_ids: Collection[int] = (),
        sampling: Sampling | Sequence[Sampling] = GREEDY,
    ) -> Iterator[Token]:
        """New tokens as they come, a prompt's first one right after its prefill; stop tokens are among them.

        sampling: one for all users or one a user. Users without a seed draw from streams of their own; users with the same
        seed and prompt say the same.
        A generator serves one call at a time: iterating to the end or closing the iterator leaves it ready for another.
        UserError, at once, for a request that cannot be served, and while another call's iterator is at work.
        """
        model = self.replicas[0].model
        check_request(
            prompts,
            max_new_tokens,
            model.max_seq_len,
            self.users,
            vocab_size=model.config.vocab_size,
            stop_ids=stop_ids,
        )
        samplings = [sampling] * len(prompts) if isinstance(sampling, Sampling) else list(sampling)
        if len(samplings) != len(prompts):
            raise UserError(f"one sampling a user: {len(prompts)} prompts, {len(samplings)} samplings")
        for user, wanted in enumerate(samplings):
            if not self.replicas[user % len(self.replicas)].host_logits:
                wanted.check_on_device()
        self._check_idle()
        return self._serve(prompts, max_new_tokens, frozenset(stop_ids), samplings)

    def _check_idle(self) -> None:
        if self._serving:
            raise UserError(
                "this generator is in the middle of another call: read its iterator to the end, or close() it, first"
            )

    def _serve(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, stop_ids: frozenset[int], samplings: list[Sampling]
    ) -> Iterator[Token]:
        self._check_idle()  # another call may have begun since this one was made
        self._serving = True
        count = len(self.replicas)
        groups = []
        left = [max_new_tokens] * len(prompts)

        def token_of(user: int, id: int) -> Token:
            left[user] = 0 if id in stop_ids else left[user] - 1
            return Token(user, id, last=not left[user])

        try:
            for i, replica in enumerate(self.replicas):
                groups.append(_Users(replica, range(i, len(prompts), count), samplings))
            for user, prompt in enumerate(prompts):
                group, row = groups[user % count], user // count
                token = token_of(user, group.prefill(row, prompt))
                if not token.last:
                    group.enter(row, token.id, len(prompt), len(prompt) + max_new_tokens)
                yield token
            while any(left):
                working = [group for group in groups if any(left[user] for user in group.users)]
                for group in working:  # all replicas are under way before the first is read
                    group.launch(max(left[user] for user in group.users))
                for group in working:
                    rows = [row for row, user in enumerate(group.users) if left[user]]
                    for row, id in zip(rows, group.read(rows), strict=True):
                        token = token_of(group.users[row], id)
                        if token.last:
                            group.leave(row)
                        yield token
        finally:
            for group in groups:
                group.drain()
            self._serving = False

    def close(self) -> None:
        for replica in self.replicas:
            replica.close()

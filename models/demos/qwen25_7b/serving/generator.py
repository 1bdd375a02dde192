"""Generator: prompts in, token ids out, step by step."""

from dataclasses import dataclass
from typing import Collection, Iterator, Sequence

import torch

from models.common.errors import UserError
from models.demos.qwen25_7b.config.sampling import CANDIDATES, GREEDY, Sampling
from models.demos.qwen25_7b.plans.decode_plan import MAX_USERS
from models.demos.qwen25_7b.serving.replica import Replica
from models.demos.qwen25_7b.serving.sampling import HostSampler

AHEAD = 2  # decode steps in flight where the chips sample: one computing, one waiting for it


@dataclass(frozen=True)
class Token:
    """One new token of one user."""

    user: int
    id: int
    last: bool  # a stop token, or the last that was asked for


def check_request(
    prompts: Sequence[Sequence[int]], max_new_tokens: int, max_seq_len: int, max_users: int = MAX_USERS
) -> None:
    """UserError for a request that the model cannot serve; cheap, so ask before loading."""
    if not 1 <= len(prompts) <= max_users:
        raise UserError(f"a batch is 1 to {max_users} prompts, got {len(prompts)}")
    if max_new_tokens < 1:
        raise UserError(f"max_new_tokens must be 1 or more, got {max_new_tokens}")
    for user, prompt in enumerate(prompts):
        if not prompt:
            raise UserError(f"prompt {user} is empty: a prompt needs at least one token")
        if len(prompt) + max_new_tokens > max_seq_len:
            raise UserError(
                f"prompt {user} has {len(prompt)} tokens; with {max_new_tokens} new ones that is more than the context "
                f"of {max_seq_len}: shorten it, or ask for fewer new tokens"
            )


class _Users:
    """The users of one replica: who they are, their next tokens and positions, and whose turn is over.

    Row r of the replica's batch is user users[r].
    """

    def __init__(self, replica: Replica, users: Sequence[int], samplings: Sequence[Sampling]):
        self.replica, self.users = replica, users
        self.pages = replica.model.pages
        mine = [samplings[user] for user in users]
        self.sample = HostSampler(mine, streams=users)
        self.drawing = [row for row, sampling in enumerate(mine) if not sampling.greedy and not replica.host_logits]
        self.tokens = [0] * replica.batch
        self.positions = [0] * replica.batch
        self.tables = torch.stack([self.pages.table([])] * replica.batch)
        self.moved = True  # whether someone came or went since the device was last told
        if not replica.host_logits:
            replica.place_sampling(mine)

    def prefill(self, row: int, prompt: Sequence[int]) -> int:
        """The token that follows a user's prompt."""
        self._place_noise([row])
        self.replica.prefill(prompt, self.pages.blocks_of(row, len(prompt)))
        return self._chosen(self.replica.read(), row)

    def enter(self, row: int, token: int, position: int, context: int) -> None:
        """A user's first token is known; it may grow to `context` tokens."""
        self.tokens[row], self.positions[row] = token, position
        self.tables[row] = self.pages.table(self.pages.blocks_of(row, context))

    def leave(self, row: int) -> None:
        """Its row goes on being computed, on nobody's block."""
        self.tokens[row] = self.positions[row] = 0
        self.tables[row] = self.pages.table([])
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
            self._place_noise(self.drawing)
            self.replica.launch()

    def read(self, rows: Sequence[int]) -> list[int]:
        """The tokens of these rows from the oldest step in flight."""
        outcome = self.replica.read()
        self.positions = [position + 1 for position in self.positions]
        return [self._chosen(outcome, row) for row in rows]

    def drain(self) -> None:
        """Read what is in flight and forget it."""
        while self.replica.in_flight:
            self.read([])

    def _chosen(self, outcome: Sequence, row: int) -> int:
        self.tokens[row] = self.sample(row, outcome[row]) if self.replica.host_logits else outcome[row]
        return self.tokens[row]

    def _place_noise(self, rows: Sequence[int]) -> None:
        if not set(rows) & set(self.drawing):
            return
        noise = torch.zeros(MAX_USERS, CANDIDATES)
        for row in rows:
            noise[row] = self.sample.noise.draw(row)
        self.replica.place_noise(noise)


class Generator:
    """Serves prompts with one or more replicas of a model, each on its own chips.

    User u is served by replica u % len(replicas).
    """

    def __init__(self, replicas: Sequence[Replica]):
        self.replicas = replicas
        self.users = sum(replica.batch for replica in replicas)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        *,
        stop_ids: Collection[int] = (),
        sampling: Sampling | Sequence[Sampling] = GREEDY,
    ) -> Iterator[Token]:
        """New tokens as they come, a prompt's first one right after its prefill; stop tokens are among them.

        sampling: one for all users (each draws from a stream of its own) or one a user.
        Iterating to the end or closing the iterator leaves the generator ready for another call.
        """
        check_request(prompts, max_new_tokens, self.replicas[0].model.max_seq_len, self.users)
        samplings = [sampling] * len(prompts) if isinstance(sampling, Sampling) else list(sampling)
        if len(samplings) != len(prompts):
            raise UserError(f"one sampling a user: {len(prompts)} prompts, {len(samplings)} samplings")
        count = len(self.replicas)
        for user, wanted in enumerate(samplings):
            if not self.replicas[user % count].host_logits:
                wanted.check_on_device()
        left = [max_new_tokens] * len(prompts)
        groups = [_Users(replica, range(i, len(prompts), count), samplings) for i, replica in enumerate(self.replicas)]

        def token_of(user: int, id: int) -> Token:
            left[user] = 0 if id in stop_ids else left[user] - 1
            return Token(user, id, last=not left[user])

        try:
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

    def close(self) -> None:
        for replica in self.replicas:
            replica.close()

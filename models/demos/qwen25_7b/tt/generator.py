"""Generator: prompts in, token ids out, step by step."""
from dataclasses import dataclass
from typing import Collection, Iterator, Sequence

import torch

from models.common.errors import UserError
from models.demos.qwen25_7b.tt.decode_plan import MAX_USERS
from models.demos.qwen25_7b.tt.replica import Replica
from models.demos.qwen25_7b.tt.sampling import HostSampler, Sampling


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
    """The users of one replica: who they are, their next tokens and positions, and whose turn is over."""

    def __init__(self, replica: Replica, users: Sequence[int]):
        self.replica, self.users = replica, users
        self.pages = replica.model.pages
        self.tokens = [0] * replica.batch
        self.positions = [0] * replica.batch
        self.tables = torch.stack([self.pages.table([])] * replica.batch)
        self.moved = True  # whether someone came or went since the device was last told

    def enter(self, row: int, token: int, position: int, context: int) -> None:
        """A user's first token is known; it may grow to `context` tokens."""
        self.tokens[row], self.positions[row] = token, position
        self.tables[row] = self.pages.table(self.pages.blocks_of(row, context))

    def leave(self, row: int) -> None:
        """Its row goes on being computed, on nobody's block."""
        self.tokens[row] = self.positions[row] = 0
        self.tables[row] = self.pages.table([])
        self.moved = True

    def launch(self) -> None:
        if self.moved:
            self.replica.place(self.tokens, self.positions, self.tables)
            self.moved = False
        else:
            self.replica.place_tokens(self.tokens)
        self.replica.launch()
        self.positions = [position + 1 for position in self.positions]


class Generator:
    """Serves prompts with one or more replicas of a model, each on its own chips; samples on the host.

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
        sampling: Sampling = Sampling(),
    ) -> Iterator[Token]:
        """New tokens as they come, a prompt's first one right after its prefill; stop tokens are among them.

        Iterating to the end or closing the iterator leaves the generator ready for another call.
        """
        check_request(prompts, max_new_tokens, self.replicas[0].model.max_seq_len, self.users)
        sample = HostSampler(sampling, len(prompts))
        left = [max_new_tokens] * len(prompts)
        count = len(self.replicas)
        groups = [_Users(replica, range(i, len(prompts), count)) for i, replica in enumerate(self.replicas)]

        def choose(user: int, logits: torch.Tensor) -> Token:
            token = sample(user, logits)
            left[user] = 0 if token in stop_ids else left[user] - 1
            return Token(user, token, last=not left[user])

        for user, prompt in enumerate(prompts):
            group, row = groups[user % count], user // count
            token = choose(user, group.replica.prefill(prompt, group.pages.blocks_of(row, len(prompt))))
            if not token.last:
                group.enter(row, token.id, len(prompt), len(prompt) + max_new_tokens)
            yield token
        while any(left):
            working = [group for group in groups if any(left[user] for user in group.users)]
            for group in working:  # all replicas are under way before the first is read
                group.launch()
            for group in working:
                logits = group.replica.read()
                for row, user in enumerate(group.users):
                    if not left[user]:
                        continue
                    token = choose(user, logits[row])
                    group.tokens[row] = token.id
                    if token.last:
                        group.leave(row)
                    yield token

    def close(self) -> None:
        for replica in self.replicas:
            replica.close()

"""Teacher forcing: a model reads texts as they are, whatever it would have said, and what it expects is kept."""

from collections import deque
from dataclasses import replace
from typing import Iterator, NamedTuple, Sequence

import torch

from models.demos.qwen25_7b.config import MAX_USERS
from models.demos.qwen25_7b.evaluation.texts import ForcedText
from models.demos.qwen25_7b.plans.blocks import NOWHERE, attention_table, attention_tables, equal_shares
from models.demos.qwen25_7b.serving.passes import Pass, Prompt, plan_passes
from models.demos.qwen25_7b.serving.replica import Replica


class Expected(NamedTuple):
    """What the model expects after tokens that it has just read."""

    texts: list[int]  # row r belongs to texts[r]
    positions: list[int]  # and follows the token at positions[r] of it
    logits: torch.Tensor  # [rows, vocab_size]

    def of(self, rows: list[int]) -> "Expected":
        """These rows of it."""
        return Expected([self.texts[row] for row in rows], [self.positions[row] for row in rows], self.logits[rows])


def forced(replicas: Sequence[Replica], texts: Sequence[ForcedText]) -> Iterator[Expected]:
    """What is expected after each prompt's last token, and after each further token but a text's last.

    Prompts are prefilled one at a time, further tokens are decode steps of all rows at once; a row whose text is over
    takes the next one. Replicas work at the same time.
    """
    waiting = deque(enumerate(texts))
    groups = [_Rows(replica) for replica in replicas]
    while True:
        for group in groups:
            yield from group.fill(waiting)
        working = [group for group in groups if group.busy]
        if not working:
            return
        for group in working:
            group.launch()
        for group in working:
            yield group.read()


def prefilled(replica: Replica, texts: Sequence[ForcedText]) -> Iterator[Expected]:
    """The same predictions by prefill alone: the whole text is a prompt, once for every 32 tokens asked about."""
    blocks = equal_shares(replica.blocks, replica.batch)[0]
    for index, text in enumerate(texts):
        for work in passes_of(replica, Prompt(0, text.ids[:-1], 0, blocks)):
            (piece,) = work.pieces
            for first in range(max(piece.write, text.beginning - 1), piece.end, MAX_USERS):
                places = list(range(first, min(first + MAX_USERS, piece.end)))
                logits = answer(replica, replace(work, asked=tuple(place - piece.first for place in places)))
                yield Expected([index] * len(places), places, logits[: len(places)])
            if text.beginning > piece.end:
                replica.prefill(work)


def passes_of(replica: Replica, prompt: Prompt) -> list[Pass]:
    return plan_passes([prompt], replica.model.longest_pass, replica.block)


def answer(replica: Replica, work: Pass) -> torch.Tensor:
    """[32, vocab_size]: logits after an answering pass, by row of the batch."""
    replica.prefill(work)
    replica.read()
    return replica.logits()


class _Rows:
    """The rows of a replica's batch: the text that each reads, and how far it is."""

    def __init__(self, replica: Replica):
        self.replica, self.blocks = replica, equal_shares(replica.blocks, replica.batch)
        self.texts: dict[int, tuple[int, ForcedText]] = {}  # by row: the text's index, and the text
        self.positions = [NOWHERE] * replica.batch  # of the token that the next step reads
        self.tables = attention_tables([[]] * replica.batch, replica.width)
        self.moved = True  # whether someone came or went since the device was last told

    @property
    def busy(self) -> bool:
        return bool(self.texts)

    def fill(self, waiting: deque) -> Iterator[Expected]:
        """Let waiting texts into idle rows; a text of one further token needs its prefill only."""
        for row in range(self.replica.batch):
            while waiting and row not in self.texts:
                index, text = waiting.popleft()
                yield self._enter(row, index, text)

    def _enter(self, row: int, index: int, text: ForcedText) -> Expected:
        *beginning, last = passes_of(self.replica, Prompt(row, text.ids[: text.beginning], 0, self.blocks[row]))
        for work in beginning:
            self.replica.prefill(work)
        logits = answer(self.replica, last)
        if len(text.ids) > text.beginning + 1:
            self.texts[row] = index, text
            self.positions[row] = text.beginning
            self.tables[row] = attention_table(self.blocks[row], self.replica.width)
            self.moved = True
        return Expected([index], [text.beginning - 1], logits[[row]])

    def launch(self) -> None:
        tokens = [0] * self.replica.batch
        for row, (_, text) in self.texts.items():
            tokens[row] = text.ids[self.positions[row]]
        if self.moved:
            self.replica.place(tokens, self.positions, self.tables)
            self.moved = False
        else:
            self.replica.place_tokens(tokens)
        self.replica.launch()

    def read(self) -> Expected:
        rows = sorted(self.texts)
        self.replica.read()
        logits = self.replica.logits()[rows]
        expected = Expected([self.texts[row][0] for row in rows], [self.positions[row] for row in rows], logits)
        for row in rows:
            self.positions[row] += 1
            if self.positions[row] == len(self.texts[row][1].ids) - 1:
                self._leave(row)
        return expected

    def _leave(self, row: int) -> None:
        del self.texts[row]
        self.positions[row] = NOWHERE
        self.tables[row] = attention_table([], self.replica.width)
        self.moved = True

"""Teacher forcing: a model reads fixed texts, and its predictions after each token are kept."""

from collections import deque
from typing import Iterator, NamedTuple, Sequence

import torch

from models.demos.qwen25_7b.engine.prefill_batch import PrefillBatch, Prompt
from models.demos.qwen25_7b.engine.readiness import logits_after_each
from models.demos.qwen25_7b.engine.replica import Replica
from models.demos.qwen25_7b.plans.blocks import INACTIVE, attention_table, attention_tables, equal_shares

from .texts import ForcedText


class Prediction(NamedTuple):
    """Logits after tokens that the model has just read."""

    texts: list[int]  # row r belongs to texts[r]
    positions: list[int]  # row r follows the token at positions[r] of its text
    logits: torch.Tensor  # [rows, vocab_size]


def predict_with_decode(replicas: Sequence[Replica], texts: Sequence[ForcedText]) -> Iterator[Prediction]:
    """Predictions after each prompt's last token, and after each further token but a text's last.

    Prompts are prefilled one at a time. Further tokens are decode steps of all slots at once.
    A slot takes the next text when its text ends. Replicas work at the same time.
    """
    waiting = deque(enumerate(texts))
    batches = [_Slots(replica) for replica in replicas]
    while True:
        for batch in batches:
            yield from batch.fill(waiting)
        active = [batch for batch in batches if batch.texts]
        if not active:
            return
        for batch in active:
            batch.launch()
        for batch in active:
            yield batch.read()


def predict_with_prefill(replica: Replica, texts: Sequence[ForcedText]) -> Iterator[Prediction]:
    """The same predictions by prefill alone."""
    for index, text in enumerate(texts):
        for positions, logits in logits_after_each(replica, text.ids[:-1], text.prompt_length - 1):
            yield Prediction([index] * len(positions), list(positions), logits)


def predict_along(replica: Replica, ids: Sequence[int], first: int) -> Iterator[Prediction]:
    """Predictions after each token from `first` on but the last, by decode steps at several places of the text.

    A prefill fills the first sequence's blocks with the whole text. Each slot then steps through one block of tokens,
    in a block of its own. Its table has the prefilled blocks before that. first: a multiple of the replica's block.
    """
    text, *shares = equal_shares(replica.blocks, replica.users)
    for batch in replica.batches([Prompt(0, ids[:-1], 0, text)]):
        replica.prefill(batch)
    replica.read_tokens()
    starts = range(first, len(ids) - 1, replica.block)
    for group in (starts[at : at + len(shares)] for at in range(0, len(starts), len(shares))):
        blocks = [[*text[: start // replica.block], own[0]] for start, own in zip(group, shares)]
        blocks += [[]] * (replica.slots - len(blocks))
        for step in range(replica.block):
            at = [start + step for start in group if start + step < len(ids) - 1]
            replica.inputs.write_slots([ids[p] for p in at], at, attention_tables(blocks, replica.width))
            replica.launch_decode()
            replica.read_tokens()
            yield Prediction([0] * len(at), at, replica.read_logits()[: len(at)])


def prefill_logits(replica: Replica, batch: PrefillBatch) -> torch.Tensor:
    """Run the batch. Returns [32, vocab_size], logits by slot."""
    replica.prefill(batch)
    replica.read_tokens()
    return replica.read_logits()


class _Slots:
    """The slots of a replica's decode batch: the text in each, and its position."""

    def __init__(self, replica: Replica):
        self.replica = replica
        self.blocks = equal_shares(replica.blocks, replica.users)
        self.texts: dict[int, tuple[int, ForcedText]] = {}  # by slot: a text's index, and the text
        self.positions = [INACTIVE] * replica.slots  # positions of the tokens that the next step reads
        self.tables = attention_tables([[]] * replica.slots, replica.width)
        self.changed = True  # a text was added or removed since the last upload to the device

    def fill(self, waiting: deque) -> Iterator[Prediction]:
        """Prefill waiting texts into inactive slots. A text of one further token needs its prefill only."""
        for slot in range(self.replica.users):
            while waiting and slot not in self.texts:
                index, text = waiting.popleft()
                yield self._add(slot, index, text)

    def _add(self, slot: int, index: int, text: ForcedText) -> Prediction:
        prompt = Prompt(slot, text.ids[: text.prompt_length], 0, self.blocks[slot])
        *first, last = self.replica.batches([prompt])
        for batch in first:
            self.replica.prefill(batch)
        logits = prefill_logits(self.replica, last)
        if len(text.ids) > text.prompt_length + 1:
            self.texts[slot] = index, text
            self.positions[slot] = text.prompt_length
            self.tables[slot] = attention_table(self.blocks[slot], self.replica.width)
            self.changed = True
        return Prediction([index], [text.prompt_length - 1], logits[[slot]])

    def launch(self) -> None:
        tokens = [0] * self.replica.slots
        for slot, (_, text) in self.texts.items():
            tokens[slot] = text.ids[self.positions[slot]]
        if self.changed:
            self.replica.inputs.write_slots(tokens, self.positions, self.tables)
            self.changed = False
        else:
            self.replica.inputs.write_tokens(tokens)
        self.replica.launch_decode()

    def read(self) -> Prediction:
        slots = sorted(self.texts)
        self.replica.read_tokens()
        prediction = Prediction(
            [self.texts[slot][0] for slot in slots],
            [self.positions[slot] for slot in slots],
            self.replica.read_logits()[slots],
        )
        for slot in slots:
            self.positions[slot] += 1
            if self.positions[slot] == len(self.texts[slot][1].ids) - 1:
                del self.texts[slot]
                self.positions[slot] = INACTIVE
                self.tables[slot] = attention_table([], self.replica.width)
                self.changed = True
        return prediction

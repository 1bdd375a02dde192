"""Batch: the texts that one replica writes at once, their rows and their blocks."""

from typing import Collection, Optional, Sequence

import torch

from models.demos.qwen25_7b.config import MAX_USERS
from models.demos.qwen25_7b.config.sampling import CANDIDATES, GREEDY, Sampling, Seen
from models.demos.qwen25_7b.plans.blocks import NOWHERE, attention_tables
from models.demos.qwen25_7b.plans.grids import ceil_div
from models.demos.qwen25_7b.serving.block_pool import BlockPool
from models.demos.qwen25_7b.serving.noise import gumbel, stream_key
from models.demos.qwen25_7b.serving.passes import Pass, Prompt, plan_passes
from models.demos.qwen25_7b.serving.proposals import Repeats
from models.demos.qwen25_7b.serving.replica import Replica
from models.demos.qwen25_7b.serving.sampling import choose
from models.demos.qwen25_7b.serving.speculation import Draft, Speculation, Tally

AHEAD = 2  # decode steps in flight where the chips sample: one computing, one waiting for it


class Text:
    """A prompt and what follows it.

    Once its prompt is computed, the cache holds all tokens but the last, which the next step writes. key: what its draws depend on besides positions.
    """

    def __init__(
        self, user: int, prompt: Sequence[int], new_tokens: int, sampling: Sampling, stop_ids: Collection[int]
    ):
        self.user, self.tokens, self.left = user, list(prompt), new_tokens
        self._prompt, self._stop_ids = len(prompt), stop_ids
        self.sampling, self.key = sampling, stream_key(sampling.seed)
        self.row: Optional[int] = None
        self.blocks: list[int] = []
        self.start = 0  # tokens that a cache held when it came
        self.held = 0  # tokens that it holds, or will when all that was launched is through
        self.new: list[int] = []  # what the last step or pass gave it
        self.repeats = Repeats()

    @property
    def done(self) -> bool:
        return self.left <= 0

    @property
    def seen(self) -> Seen:
        return Seen(self.tokens[: self._prompt], self.tokens[self._prompt :])

    def take(self, tokens: list[int]) -> None:
        """What a step or pass gave it, up to a token that ends it. The cache holds all before the last of them."""
        end = next((i for i, token in enumerate(tokens, 1) if token in self._stop_ids), None)
        self.new = tokens[:end]
        self.tokens += self.new
        self.held = len(self.tokens) - 1
        self.left = self.left - len(self.new) if end is None else 0


class Batch:
    """on_host: choose every token on the host; else only those of texts whose options the chips do not know.

    A replica that verifies guesses gets them (speculation.py). Each must be read before the next can be made, so a step is
    in flight alone then.
    """

    def __init__(self, replica: Replica, *, on_host: bool = False):
        self.replica, self.on_host = replica, on_host
        self.pool = BlockPool(replica.blocks, replica.block)
        self.tally = Tally()
        speculates = replica.speculate > 1 and not on_host
        self._speculation = Speculation(replica, self.pool, replica.speculate) if speculates else None
        self._drafts: list[Draft] = []  # of the step in flight, where it verifies guesses
        self.rows: list[Optional[Text]] = [None] * replica.batch
        self._entered: list[Text] = []  # those in rows, by when they came
        self._moved = True  # whether texts came or went since the chips were last told
        self._grown = False  # whether one took another block
        self._options: list[Sampling] = []  # what the chips were told of each row

    # ---- coming and going

    @property
    def texts(self) -> list[Text]:
        return list(self._entered)

    @property
    def in_flight(self) -> int:
        return self.replica.in_flight

    @property
    def has_room(self) -> bool:
        return len(self._entered) < self.replica.users

    def admit(self, text: Text) -> bool:
        """Give the text a row and blocks, if there are any; not while steps are in flight, which know nothing of it."""
        if self.in_flight or not self.has_room or not self._housed(text):
            return False
        text.row = self.rows.index(None)
        self.rows[text.row] = text
        self._entered.append(text)
        self._moved = True
        return True

    def _housed(self, text: Text) -> bool:
        """Whether the text got blocks for all its tokens but, of what the cache knows of its beginning, its own."""
        known = self.pool.find(text.tokens[:-1])
        self.pool.hold(known)
        taken = self.pool.take(ceil_div(len(text.tokens), self.pool.block) - len(known))
        if taken is None:
            self.pool.release(known)
            return False
        text.blocks = known + taken
        text.start = text.held = len(known) * self.pool.block
        return True

    def leave(self, text: Text) -> None:
        """Its row is idle from now on. What its blocks hold can be found until they are given to others: where it leaves
        before its prompt was computed, that is not all of it."""
        self.rows[text.row] = None
        self._entered.remove(text)
        self.pool.learn(text.tokens[: text.held], text.blocks)
        self.pool.release(text.blocks)
        text.blocks, text.row = [], None
        self._moved = True

    # ---- prompts

    def passes(self, texts: Sequence[Text]) -> list[Pass]:
        prompts = [Prompt(text.row, text.tokens, text.start, text.blocks) for text in texts]
        return plan_passes(prompts, self.replica.model.longest_pass, self.pool.block)

    def run(self, work: Pass) -> None:
        """Start a pass; where it answers somebody, `answers` waits for it."""
        self._place_options([(text.row, text) for text in self._entered])
        answered = [self.rows[row] for row in work.answered]
        self._place_noise([(text.row, text, len(text.tokens)) for text in answered])
        if any(map(self._penalised, answered)):
            self._place_seen()
        self.replica.prefill(work)
        for piece in work.pieces:
            self.rows[piece.prompt.row].held = piece.end

    def answers(self, work: Pass) -> list[Text]:
        """The texts whose prompts ended in the pass that is read now, each with its first new token."""
        texts = [self.rows[row] for row in work.answered]
        if texts:
            for text in texts:
                self.pool.learn(text.tokens, text.blocks)
            self._read(texts)
        return texts

    # ---- steps

    def launch(self, steps: int) -> None:
        """Have up to `steps` steps in flight. Where the chips choose, the next one needs nothing from the host, so it is
        under way while this one's tokens are read; unless texts came or went: then all that is in flight is read first.
        """
        ahead = 1 if self._speculation or self._host_texts() else AHEAD
        while self.in_flight < min(steps, ahead) and not (self._moved and self.in_flight):
            if not self._grow():
                return
            if self._guess():
                self._launch_drafts()
                return
            self._place()
            # The step writes after those in flight, and draws the token behind what it writes.
            self._place_noise([(text.row, text, len(text.tokens) + self.in_flight) for text in self._entered])
            self.replica.launch()

    def _guess(self) -> list[Draft]:
        """What the next step verifies. Nothing where somebody has penalties: the chips keep what they are of by row."""
        guesses = self._speculation and not any(map(self._penalised, self._entered))
        self._drafts = self._speculation.drafts(self._entered) if guesses else []
        return self._drafts

    def _launch_drafts(self) -> None:
        self._speculation.place(self._drafts)
        of_rows = [(row, draft.text, i) for draft in self._drafts for i, row in enumerate(draft.rows)]
        self._place_options([(row, text) for row, text, _ in of_rows])
        self._place_noise([(row, text, len(text.tokens) + i) for row, text, i in of_rows])
        self.replica.launch_verify()
        self._moved = True  # where each text goes on, the host alone knows

    def read(self) -> list[Text]:
        """The texts with their tokens of the oldest step in flight."""
        texts = self.texts
        self._read(texts)
        self.tally += Tally(
            steps=len(texts),
            tokens=sum(len(text.new) for text in texts),
            guessed=sum(len(draft.rows) - 1 for draft in self._drafts),
        )
        self._drafts = []
        return texts

    def drain(self) -> None:
        """Read what is in flight and forget it."""
        while self.in_flight:
            self.replica.read()
            self._moved = True

    def crowded(self) -> Optional[Text]:
        """Who must make room: the last that came, where the next step needs a block and there is none."""
        return self._entered[-1] if len(self._short()) > self.pool.free and not self.in_flight else None

    def _short(self) -> list[Text]:
        """Those past whose blocks the next step writes."""
        written = {text: len(text.tokens) - 1 + self.in_flight for text in self._entered}
        return [text for text, at in written.items() if at >= len(text.blocks) * self.pool.block]

    def _grow(self) -> bool:
        """A block more for each text whose next token begins one; False if there are too few."""
        short = self._short()
        taken = self.pool.take(len(short))
        if taken is None:
            return False
        for text, block in zip(short, taken):
            text.blocks.append(block)
            self._grown = True
        return True

    def _place(self) -> None:
        tables = attention_tables([text.blocks if text else [] for text in self.rows], self.replica.width)
        if self._moved:
            self._place_options([(text.row, text) for text in self._entered])
            tokens = [text.tokens[-1] if text else 0 for text in self.rows]
            positions = [len(text.tokens) - 1 if text else NOWHERE for text in self.rows]
            self.replica.place(tokens, positions, tables)
            self._place_seen()
        else:
            if self._grown:
                self.replica.place_tables(tables)
            if self._host_texts():
                self.replica.place_tokens([text.tokens[-1] if text else 0 for text in self.rows])
        self._moved = self._grown = False

    def _place_options(self, rows: Sequence[tuple[int, Text]]) -> None:
        """How the tokens of these (row, text) are chosen. Nobody pays for options of a text that is not here any more."""
        wanted = [GREEDY] * self.replica.batch
        for row, text in rows:
            if not self._on_host(text):
                wanted[row] = text.sampling
        if wanted != self._options:
            self.replica.place_sampling(wanted)
            self._options = wanted

    def _place_seen(self) -> None:
        penalised = {text.row: text.seen for text in self._entered if self._penalised(text)}
        if penalised:
            self.replica.place_seen(penalised)

    def _penalised(self, text: Text) -> bool:
        """On the chips."""
        return text.sampling.penalised and not self._on_host(text)

    def _place_noise(self, rows: Sequence[tuple[int, Text, int]]) -> None:
        """For the next step or pass to draw the tokens of these (row, text, position in the text)."""
        drawing = [(row, text.key, position) for row, text, position in rows if not text.sampling.greedy]
        if not drawing:
            return
        own, keys, positions = zip(*drawing)
        noise = torch.zeros(MAX_USERS, CANDIDATES)
        noise[list(own)] = gumbel(keys, positions, CANDIDATES)
        self.replica.place_noise(noise)

    def _host_texts(self) -> list[Text]:
        return [text for text in self._entered if self._on_host(text)]

    def _on_host(self, text: Text) -> bool:
        return self.on_host or not text.sampling.on_device

    def _read(self, texts: Sequence[Text]) -> None:
        """Give each of `texts` its tokens of the oldest step or pass in flight."""
        chosen = self.replica.read()
        logits = self.replica.logits() if any(map(self._on_host, texts)) else None
        of_drafts = {draft.text: draft.accepted(chosen) for draft in self._drafts}
        for text in texts:
            tokens = of_drafts.get(text, [chosen[text.row]])
            if self._on_host(text):
                tokens = [choose(logits[text.row], text.sampling, text.key, len(text.tokens), text.seen)]
            text.take(tokens)

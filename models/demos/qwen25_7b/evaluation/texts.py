"""Texts to judge a model on: rows of token ids, none of which the model's own output decides."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Optional, Sequence

from models.common.errors import UserError
from models.demos.qwen25_7b.reference.corpus import LATER_WEIGHTS, make_questions
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.reference.train_small import IGNORE, encode_chat

HELD_OUT = Path(__file__).with_name("held_out.txt")


class ForcedText(NamedTuple):
    """A text that a model reads as it is: the first `beginning` tokens as a prompt, the others one at a time."""

    ids: Sequence[int]
    beginning: int


@dataclass(frozen=True)
class Sample:
    """Texts of one length. A model reads the beginning as a prompt, and then a token at a time."""

    source: str  # for whoever reads the result
    texts: list[list[int]]
    beginning: int  # tokens of each text that are its prompt
    judged: list[list[int]]  # of each text, the places of further tokens at which it is asked what follows

    @property
    def tokens(self) -> int:
        return sum(map(len, self.judged))


def sample(tokenizer, directory: Path, file: Optional[Path], *, count: int, beginning: int, steps: int) -> Sample:
    """Up to `count` texts of beginning + steps + 1 tokens: cut from `file`, or else from what this repository has.

    directory: the model's. The small checkpoint knows nothing but its own world, so it is judged on questions that were
    held out of its training; any other model on held_out.txt.
    """
    length = beginning + steps + 1
    if file is None and directory.resolve() == SMALL_CHECKPOINT:
        return _questions(tokenizer, count, beginning, length)
    file = file or HELD_OUT
    ids = encode(tokenizer, read(file))
    if len(ids) < length:
        raise UserError(f"{file} has {len(ids)} tokens, one text takes {length}: give a longer one, or fewer --steps")
    count = min(count, len(ids) // length)
    starts = [i * (len(ids) - length) // max(1, count - 1) for i in range(count)]  # over all of the file
    texts = [ids[start : start + length] for start in starts]
    return Sample(file.name, texts, beginning, [list(range(beginning, length - 1))] * count)


def encode(tokenizer, text: str) -> list[int]:
    """Token ids of a text that may be longer than the model's context (verbose: transformers would warn of that)."""
    return tokenizer.encode(text, verbose=False)


def read(file: Path) -> str:
    """A file's text; UserError if there is none."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UserError(f"{file} cannot be read ({reason}): give a text file") from error


def _questions(tokenizer, count: int, beginning: int, length: int) -> Sample:
    """Chats of held-out turns, cut at `length` tokens; judged are the answers, for nothing else was ever learnt."""
    rng = random.Random(0)
    held_out = {kind: [t for t in turns if t.held_out] for kind, turns in make_questions().items() if kind != "raw"}
    kinds = [kind for kind, turns in held_out.items() if turns]
    weights = [LATER_WEIGHTS[kind] for kind in kinds]
    texts, judged = [], []
    while len(texts) < count:
        messages, ids, labels = [], [], []
        while len(ids) < length:
            turn = rng.choice(held_out[rng.choices(kinds, weights)[0]])
            messages += [{"role": "user", "content": turn.user}, {"role": "assistant", "content": turn.answer}]
            ids, labels = encode_chat(tokenizer, messages)
        texts.append(ids[:length])
        judged.append([place for place in range(beginning, length - 1) if labels[place + 1] != IGNORE])
    if not any(judged):
        raise UserError(f"after {beginning} tokens no text has an answer within {length}: ask for more --steps")
    return Sample("answers to held-out questions of the corpus", texts, beginning, judged)

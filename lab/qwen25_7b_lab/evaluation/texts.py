"""Samples: fixed texts as token ids, on which a model is scored."""

import argparse
import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, Optional, Sequence

from models.demos.qwen25_7b.cli.options import number, path
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.files import read_text
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT

from .small_questions import IGNORE, WEIGHTS, encode_chat, small_questions

HELD_OUT = Path(__file__).with_name("held_out.txt")
ENDS = (128, 512, 1024)  # tokens: the buckets' ends, unless --by-position names them


class ForcedText(NamedTuple):
    """A text for teacher forcing: a prompt of prompt_length tokens, then one token a decode step."""

    ids: Sequence[int]
    prompt_length: int


@dataclass(frozen=True)
class Sample:
    """Texts of one length, and the positions of each that are scored."""

    source: str  # for reports
    texts: list[list[int]]
    prompt_length: int  # tokens
    scored: list[list[int]]  # for each text, positions of tokens; the prediction after each counts

    @property
    def tokens(self) -> int:
        return sum(map(len, self.scored))

    @property
    def end(self) -> int:
        """The position after the last token that the model reads."""
        return len(self.texts[0]) - 1

    def without_first(self, tokens: int) -> "Sample":
        """The same scored tokens after prompts that lack their first `tokens` tokens."""
        scored = [[position - tokens for position in positions] for positions in self.scored]
        return Sample(self.source, [ids[tokens:] for ids in self.texts], self.prompt_length - tokens, scored)


def add_samples(parser: argparse.ArgumentParser) -> None:
    """Add the options that `buckets_from` reads."""
    group = parser.add_argument_group("texts")
    file = "file to cut texts from (default: text that no model was trained on)"
    group.add_argument("--text", type=path, metavar="FILE", help=file)
    for name, default, what in (
        ("--texts", 32, "texts at most; 32 fill a batch"),
        ("--prompt-tokens", 32, "prompt tokens of each text"),
        ("--steps", 64, "scored tokens of each text"),
    ):
        group.add_argument(name, default=default, help=f"{what} (default: %(default)s)", **number())
    buckets = (
        "score decode and prefill in buckets that end at these positions, comma-separated; --steps tokens a bucket, "
        f"prompts as long as needed (ENDS: {','.join(map(str, ENDS))})"
    )
    group.add_argument("--by-position", nargs="?", type=bucket_ends, const=ENDS, metavar="ENDS", help=buckets)


def bucket_ends(value: str) -> tuple[int, ...]:
    """The ends that an option names. ArgumentTypeError: they are not ascending numbers."""
    ends = tuple(int(word) if word.isdecimal() else 0 for word in value.split(","))
    if any(end <= before for before, end in zip((0, *ends), ends)):
        raise argparse.ArgumentTypeError(f"takes ascending numbers of tokens, separated by commas, got {value!r}")
    return ends


def buckets_from(args: argparse.Namespace, tokenizer, directory: Path, context: int) -> list[Sample]:
    """The samples that the options of `add_samples` describe: one for each end of --by-position, else one.

    The same tokens are scored in all, after prompts as long as needed. A longer bucket begins the same text earlier, so
    what differs between buckets is the position alone.
    context: the model's, in tokens. UserError: the samples do not fit the model, the text or --steps.
    """
    cut = partial(sample, tokenizer, directory, args.text, count=args.texts, steps=args.steps)
    ends = args.by_position
    if ends is None:
        if args.prompt_tokens + args.steps + 1 > context:
            raise UserError(
                f"--prompt-tokens {args.prompt_tokens} and --steps {args.steps} exceed the model's {context} "
                "positions: give less"
            )
        return [cut(prompt_length=args.prompt_tokens)]
    for before, end in zip((1, *ends), ends):
        if end - before < args.steps:
            raise UserError(
                f"--steps {args.steps} exceeds the bucket from position {before} to {end}: give fewer --steps, or "
                "other ENDS to --by-position"
            )
    if ends[-1] > context:
        raise UserError(f"--by-position {ends[-1]} exceeds the model's {context} positions: give less")
    longest = cut(prompt_length=ends[-1] - args.steps)
    return [longest.without_first(ends[-1] - end) for end in ends]


def sample(tokenizer, directory: Path, file: Optional[Path], *, count: int, prompt_length: int, steps: int) -> Sample:
    """Up to `count` texts of prompt_length + steps + 1 tokens, cut from `file`.

    Prompts may overlap. No token is scored twice.
    directory: the model's. Without a file the small checkpoint gets questions that its training held out,
    because it was trained on no other text. Any other model gets held_out.txt.
    """
    length = prompt_length + steps + 1
    if file is None and directory.resolve() == SMALL_CHECKPOINT:
        return _questions(tokenizer, count, prompt_length, length)
    file = file or HELD_OUT
    ids = encode(tokenizer, read_text(file, "--text"))
    if len(ids) < length:
        raise UserError(
            f"--text {file} has {len(ids)} tokens, and one text takes {length}: give a longer file, or fewer --steps"
        )
    count = min(count, 1 + (len(ids) - length) // steps)
    starts = [i * (len(ids) - length) // max(1, count - 1) for i in range(count)]
    texts = [ids[start : start + length] for start in starts]
    return Sample(file.name, texts, prompt_length, [list(range(prompt_length, length - 1))] * count)


def encode(tokenizer, text: str) -> list[int]:
    """Token ids of a text that may be longer than the model's context, without transformers' warning of it."""
    return tokenizer.encode(text, verbose=False)


def _questions(tokenizer, count: int, prompt_length: int, length: int) -> Sample:
    """Chats of held-out turns, cut at `length` tokens. Only answers are scored: training learned nothing else."""
    held_out = {kind: [turn for turn in turns if turn.held_out] for kind, turns in small_questions().items()}
    rng = random.Random(0)
    texts, scored = [], []
    while len(texts) < count:
        messages, ids, labels = [], [], []
        while len(ids) < length:
            (kind,) = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
            turn = rng.choice(held_out[kind])
            messages += [{"role": "user", "content": turn.user}, {"role": "assistant", "content": turn.answer}]
            ids, labels = encode_chat(tokenizer, messages)
        texts.append(ids[:length])
        scored.append([p for p in range(prompt_length, length - 1) if labels[p + 1] != IGNORE])
    if not any(scored):
        raise UserError(f"no text has an answer between token {prompt_length} and token {length}: give more --steps")
    return Sample("answers to held-out questions of the corpus", texts, prompt_length, scored)

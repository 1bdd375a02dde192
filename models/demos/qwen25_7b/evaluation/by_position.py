"""`eval --by-position`: buckets of tokens, each up to a position.

The same tokens are scored in every bucket: a longer bucket begins the same text earlier. What differs between
buckets is therefore the position alone.
"""

import argparse
from dataclasses import dataclass

from ..errors import UserError
from .model import EvaluatedModel
from .texts import Sample, sample

ENDS = (128, 512, 1024)  # tokens: the buckets' ends, unless --by-position names them


def add_by_position(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--by-position",
        nargs="?",
        type=bucket_ends,
        const=ENDS,
        metavar="ENDS",
        help="score decode and prefill in buckets that end at these positions, comma-separated; --steps tokens a "
        f"bucket, prompts as long as needed (ENDS: {','.join(map(str, ENDS))})",
    )


def bucket_ends(value: str) -> tuple[int, ...]:
    """The ends that an option names. ArgumentTypeError: they are not ascending numbers."""
    ends = tuple(int(word) if word.isdecimal() else 0 for word in value.split(","))
    if any(end <= before for before, end in zip((0, *ends), ends)):
        raise argparse.ArgumentTypeError(f"takes ascending numbers of tokens, separated by commas, got {value!r}")
    return ends


@dataclass(frozen=True)
class Bucket:
    end: int  # the last prediction follows the token at position end - 1
    sample: Sample  # its texts have end + 1 tokens


def buckets_from(args: argparse.Namespace, model: EvaluatedModel) -> list[Bucket]:
    """The buckets that the options describe. UserError: they do not fit the model, the text or --steps."""
    context = model.config.context
    source = model.tokenizer(), model.directory, args.text
    ends = args.by_position
    for before, end in zip((1, *ends), ends):
        if end - before < args.steps:
            raise UserError(
                f"--steps {args.steps} exceeds the bucket from position {before} to {end}: give fewer --steps, or "
                "other ENDS to --by-position"
            )
    if ends[-1] > context:
        raise UserError(f"--by-position {ends[-1]} exceeds the model's {context} positions: give less")
    prompt_length = ends[-1] - args.steps
    longest = sample(*source, count=args.texts, prompt_length=prompt_length, steps=args.steps)
    return [Bucket(end, longest.without_first(ends[-1] - end)) for end in ends]

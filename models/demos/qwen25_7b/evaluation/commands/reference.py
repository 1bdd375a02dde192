"""A reference file (.refpt) in the form of tt-metal's: a text's tokens and Hugging Face's five likeliest successors of each."""

import argparse
from pathlib import Path

from models.common.errors import UserError
from models.common.terminal import say
from models.demos.qwen25_7b.evaluation.options import add_model
from models.demos.qwen25_7b.evaluation.reference import HuggingFace
from models.demos.qwen25_7b.evaluation.refpt import LONGEST, Reference
from models.demos.qwen25_7b.evaluation.subject import Subject
from models.demos.qwen25_7b.evaluation.texts import HELD_OUT, encode, read


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--text", type=Path, default=HELD_OUT, help="file (default: held_out.txt of this repository)")
    parser.add_argument("--tokens", type=int, default=LONGEST, help=f"of it, 4 to {LONGEST} (default: {LONGEST})")
    parser.add_argument("--out", type=Path, required=True, help="file to write")


def run(args: argparse.Namespace) -> None:
    subject = Subject.open(args.model)
    tokens = encode(subject.tokenizer(), read(args.text))[: args.tokens]
    if not 4 <= args.tokens <= LONGEST or len(tokens) < args.tokens:
        raise UserError(f"--tokens must be 4 to {LONGEST} and no more than {args.text} has; got {args.tokens}")
    Reference.make(HuggingFace(subject.directory), tokens).save(args.out)
    say(f"{args.out}: {len(tokens)} tokens of {args.text.name}, as {subject.name} in float32 expects them")

"""Options that the commands share."""

import argparse
from pathlib import Path
from typing import Optional

from models.common.errors import UserError
from models.common.mesh import machine
from models.common.options import add_machine as add_mesh
from models.demos.qwen25_7b.evaluation.subject import Split, Subject

OUT = Path("generated/evaluation")  # git ignores it


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", help='directory, hub id, "smollm2" or "smollm2-4bit" (default: the small checkpoint)'
    )


def add_machine(parser: argparse.ArgumentParser) -> None:
    add_mesh(parser)
    parser.add_argument(
        "--tp", type=int, help="chips that share a replica (default: as many as the model can be split over)"
    )


def add_sample(parser: argparse.ArgumentParser, steps: int) -> None:
    parser.add_argument("--text", type=Path, help="file to cut texts from (default: text that no model was trained on)")
    parser.add_argument("--texts", type=int, default=32, help="texts at most; 32 are a batch (default: 32)")
    parser.add_argument("--beginning", type=int, default=32, help="tokens of each that are its prompt (default: 32)")
    parser.add_argument("--steps", type=int, default=steps, help=f"tokens of each that are judged (default: {steps})")


def add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=OUT, help=f"directory for JSON and plots (default: {OUT})")


def check_sample(args: argparse.Namespace, longest: int) -> None:
    """UserError unless texts of these numbers of tokens can be. longest: the model's context."""
    for name in ("texts", "beginning", "steps"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name} must be 1 or more, got {getattr(args, name)}")
    if args.beginning + args.steps + 1 > longest:
        raise UserError(
            f"--beginning {args.beginning} and --steps {args.steps} are more than the model's {longest} positions"
        )


def check_against(subject: Subject, against: Optional[Subject]) -> None:
    """UserError unless one can be a rounding of the other."""
    if against and against.config != subject.config:
        raise UserError(f"--against {against.directory} is no model of the same size as {subject.directory}")


def split_of(args: argparse.Namespace, subject: Subject) -> Split:
    return Split.of(machine(args.mesh), subject.config, args.tp)


def words_of(option: str, value: str, known: tuple[str, ...]) -> list[str]:
    """A comma-separated option's words, each once; UserError for one that is not known."""
    words = list(dict.fromkeys(value.split(",")))
    for word in words:
        if word not in known:
            raise UserError(f"{option} knows {', '.join(known)}; got {word!r}")
    return words

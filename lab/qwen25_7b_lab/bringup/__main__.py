"""Runs every stage of a bring-up and writes a report: python -m qwen25_7b_lab.bringup --mesh N300 --out DIR

Stages are processes of their own with a time limit and a log. A hang, a crash or a wrong value ends its stage, and the
next one goes on. Started again, it keeps the stages that have an outcome; --only and --from run stages again.
"""

import argparse
import hashlib
import os
from datetime import date
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from models.demos.qwen25_7b.cli.command import run
from models.demos.qwen25_7b.cli.options import Parser, add_machine, path
from models.demos.qwen25_7b.cli.terminal import say
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.files import check_directory
from models.demos.qwen25_7b.tt.mesh import backend_name, device_present

from ..evaluation.questions import read_questions
from .report import write_report
from .runner import OUTCOMES, REPOSITORY, known_outcomes, run_stages
from .stages import SIZES, stages

ROOTS = REPOSITORY / "models", REPOSITORY / "lab"
PLACE = "mesh", "backend", "size", "cards"  # what all stages of a folder have in common


def main(argv: list[str] | None = None) -> int:
    prog = f"python -m {__package__}"
    parser = Parser(prog=prog, description=__doc__, examples=(f"{prog} --mesh N300 --out n300",))
    add_machine(parser)
    option, absolute = parser.add_argument, lambda text: os.path.abspath(path(text))
    option("--out", type=path, required=True, metavar="DIR", help="folder of logs and report")
    option("--model", help="directory or hub id of real weights, for the stages answers and server")
    reference = ".refpt file that judges the answers, as `make eval` writes one; default: Hugging Face in float32"
    option("--reference", type=absolute, metavar="FILE", help=reference)
    option("--questions", type=absolute, metavar="FILE", help="JSON lines in GSM8K's form, which every split answers")
    option("--size", choices=SIZES, default="7b", help="dims; tiny: minutes on a golden mesh (default: %(default)s)")
    slower = "time limits of N times the usual, for a simulator or a slow host"
    option("--slower", type=float, default=1, metavar="N", help=slower)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", metavar="STAGE,...", help="run these stages alone, again")
    which.add_argument("--from", dest="first", metavar="STAGE", help="run this stage and those after it, again")
    args = parser.parse_args(argv)
    if not args.slower > 0:
        raise UserError(f"--slower must be above 0, got {args.slower:g}")
    _check_inputs(args)
    args.on = _ran_on(args)
    for name, outcome in known_outcomes(args.out).items():
        other = [outcome.on.get(key) for key in PLACE if outcome.on.get(key) != args.on[key]]
        if other:
            raise UserError(
                f"--out {args.out}: its stage {name} ran on another machine, backend or size "
                f"({', '.join(map(str, other))}); give another --out"
            )
    every = stages(args)
    names = [stage.name for stage in every]
    given = args.only if args.first is None else args.first
    asked = [] if given is None else given.split(",")
    for name in asked:
        if name not in names:
            raise UserError(f"{name!r} is not a stage; the stages are {', '.join(names)}")
    args.out.mkdir(parents=True, exist_ok=True)
    again = asked if args.first is None else names[names.index(asked[0]) :]
    chosen = [stage for stage in every if stage.name in again or args.only is None]
    try:
        run_stages(chosen, args.out, say, again)
    finally:
        current = {stage.name: stage.on for stage in every}
        outcomes = {n: o for n, o in known_outcomes(args.out).items() if o.on == current.get(n)}
        title = f"Bring-up of Qwen2.5-7B on {args.mesh}, {args.size} dims, {date.today()}"
        write_report(args.out, title, args.mesh, args.size, outcomes)
        say(f"report: {args.out / 'report.md'}")
    return int(any(outcome.verdict not in ("green", "skipped") for outcome in outcomes.values()))


def _ran_on(args: argparse.Namespace) -> dict[str, Any]:
    """What every stage runs on. A card has a serial number, where the driver shows one."""
    backend = args.backend
    if backend == "auto":
        backend = "device" if device_present() else "golden"
    serials = sorted(Path("/sys/class/tenstorrent").glob("*/tt_serial")) if backend == "device" else []
    return {
        "mesh": args.mesh,
        "backend": backend_name(backend),
        "size": args.size,
        "cards": [file.read_text().strip() for file in serials],
        "code": _code(),
        "ttnn": version("ttnn"),
    }


def _code() -> str:
    """A digest of the programs that stages run: another edit, another digest, committed or not."""
    digest = hashlib.sha256()
    for root in (*ROOTS, REPOSITORY / "tests", REPOSITORY / "scripts", Path(find_spec("golden_mesh").origin).parent):
        for file in sorted(root.rglob("*.py")):
            digest.update(f"{file.relative_to(root)} {file.stat().st_size} ".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def _check_inputs(args: argparse.Namespace) -> None:
    """UserError: an option that a stage would refuse an hour later. Stages run elsewhere, so paths become absolute."""
    check_directory("--out", args.out)
    if args.out.exists() and any(args.out.iterdir()) and not (args.out / OUTCOMES).exists():
        raise UserError(f"--out {args.out}: exists, and is no folder of an earlier run; give a new one")
    args.out = args.out.resolve()
    if args.reference and not Path(args.reference).exists():
        raise UserError(f"--reference {args.reference}: no such file")
    if args.questions:
        read_questions(Path(args.questions))
    if args.model:
        from models.demos.qwen25_7b.config import DecoderConfig
        from models.demos.qwen25_7b.weights.checkpoint import Checkpoint, local_directory

        if Path(args.model).exists():
            args.model = f"{Path(args.model).resolve()}"
            Checkpoint.open(args.model)
        else:
            DecoderConfig.from_json(local_directory(args.model, ("config.json",)) / "config.json")


if __name__ == "__main__":
    run(main)

"""Runs every stage of a bring-up and writes a report: python -m models.demos.qwen25_7b.bringup --mesh N300 --out DIR

Stages are processes of their own with a time limit and a log. A hang, a crash or a wrong value ends its stage, and the next one
goes on. Started again, it keeps the stages that have an outcome; --only and --from run stages again.
"""

from datetime import date
from pathlib import Path

from ..cli.command import run, status_of
from ..cli.options import Parser, add_machine
from ..cli.terminal import say
from ..errors import UserError
from .report import write_report
from .runner import known_outcomes, run_stages
from .stages import SIZES, stages


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _main(argv))


def _main(argv: list[str] | None) -> int:
    prog = f"python -m {__package__}"
    parser = Parser(prog=prog, description=__doc__, examples=(f"{prog} --mesh N300 --out n300",))
    add_machine(parser)
    folder = lambda name: Path(name).resolve()
    parser.add_argument(
        "--out", type=folder, required=True, metavar="DIR", help="folder of logs and report"
    )
    parser.add_argument(
        "--model", help="directory or hub id of real weights, for the stages answers and server"
    )
    parser.add_argument(
        "--reference",
        metavar="FILE",
        help=".refpt file that judges the answers; default: Hugging Face in float32, on a host with 36 GB",
    )
    parser.add_argument(
        "--questions",
        metavar="FILE",
        help="JSON lines in GSM8K's form, which every split answers",
    )
    parser.add_argument(
        "--size",
        choices=SIZES,
        default="7b",
        help="dims; tiny: minutes on a golden mesh (default: %(default)s)",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", metavar="STAGE,...", help="run these stages alone, again")
    which.add_argument(
        "--from", dest="first", metavar="STAGE", help="run this stage and those after it, again"
    )
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    every = stages(args)
    names = [stage.name for stage in every]
    asked = (args.only or args.first or "").split(",") if args.only or args.first else []
    for name in asked:
        if name not in names:
            raise UserError(f"{name!r} is no stage: there are {', '.join(names)}")
    again = names[names.index(asked[0]) :] if args.first else asked
    chosen = [stage for stage in every if stage.name in again or not args.only]
    try:
        run_stages(chosen, args.out, say, again)
    finally:
        outcomes = known_outcomes(args.out)
        title = f"Bring-up of Qwen2.5-7B on {args.mesh}, {args.size} dims, {date.today()}"
        write_report(args.out, title, args.mesh, args.size, outcomes)
        say(f"report: {args.out / 'report.md'}")
    return int(any(outcome.verdict not in ("green", "skipped") for outcome in outcomes.values()))


if __name__ == "__main__":
    run(main)

"""How near a recipe comes to Hugging Face's float32: teacher forcing, ablation, and the tasks of lm-eval."""

import sys

from models.common.command import Parser, status_of
from models.demos.qwen25_7b.evaluation.commands import ablate, evaluate, reference, smollm2, tasks

COMMANDS = {"eval": evaluate, "ablate": ablate, "reference": reference, "tasks": tasks, "smollm2": smollm2}


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="python -m models.demos.qwen25_7b.evaluation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar=f"{{{','.join(COMMANDS)}}}")
    for name, command in COMMANDS.items():
        line = command.__doc__.splitlines()[0]
        command.add_options(commands.add_parser(name, help=line, description=line))

    def run() -> None:
        args = parser.parse_args(argv)
        COMMANDS[args.command].run(args)

    return status_of(run)


if __name__ == "__main__":
    sys.exit(main())

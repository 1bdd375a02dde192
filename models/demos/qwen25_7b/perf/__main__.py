"""The tables of PERF.md: counts, host times and a model of what a step costs."""

import sys

from models.common.command import Parser, status_of
from models.demos.qwen25_7b.perf.commands import host, matmuls, model, ops, splits

COMMANDS = {"ops": ops, "model": model, "matmuls": matmuls, "splits": splits, "host": host}


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="python -m models.demos.qwen25_7b.perf", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True, metavar=f"{{{','.join(COMMANDS)}}}")
    for name, command in COMMANDS.items():
        line = command.__doc__.splitlines()[0]
        command.add_options(commands.add_parser(name, help=line, description=line))
    return status_of(lambda: _print(parser.parse_args(argv)))


def _print(args) -> None:
    print(COMMANDS[args.command].table(args))


if __name__ == "__main__":
    sys.exit(main())

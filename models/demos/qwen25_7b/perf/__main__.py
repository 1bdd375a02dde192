"""The tables of PERF.md: counts, host times and a model of what a step costs."""

from models.common.command import quiet_libraries, run, status_of
from models.common.terminal import say


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _show_table(argv))


def _show_table(argv: list[str] | None) -> None:
    quiet_libraries()
    from models.common.options import Parser
    from models.demos.qwen25_7b.perf.commands import COMMANDS

    parser = Parser(prog="python -m models.demos.qwen25_7b.perf", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True, metavar=f"{{{','.join(COMMANDS)}}}")
    for name, command in COMMANDS.items():
        line = command.__doc__.splitlines()[0]
        command.add_options(commands.add_parser(name, help=line, description=line))
    args = parser.parse_args(argv)
    say(COMMANDS[args.command].table(args))


if __name__ == "__main__":
    run(main)

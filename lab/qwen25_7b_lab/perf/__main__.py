"""Counts, and modeled times: of a step, of a prompt, of any ttnn program, of measured operations."""

import sys

from models.demos.qwen25_7b.cli.command import quiet_libraries, run
from models.demos.qwen25_7b.cli.terminal import say


def main(argv: list[str] | None = None) -> None:
    if (argv or sys.argv[1:])[:1] != ["run"]:  # its program's own logs are shown
        quiet_libraries()
    from models.demos.qwen25_7b.cli.options import Parser

    from ..options import add_commands
    from ..prices import commands as prices
    from .commands import COMMANDS

    commands = COMMANDS | prices.COMMANDS

    prog = f"python -m {__package__}"
    examples = f"{prog} model {COMMANDS['model'].examples[0]}", f"{prog} splits"
    parser = Parser(prog=prog, description=__doc__, examples=examples)
    add_commands(parser, commands)
    args = parser.parse_args(argv)
    say(commands[args.command].run(args))


if __name__ == "__main__":
    run(main)

"""Tables of PERF.md: counts, and modeled times of a step and a prompt."""

from ..cli.command import quiet_libraries, run
from ..cli.terminal import say


def main(argv: list[str] | None = None) -> None:
    quiet_libraries()
    from ..cli.options import Parser, add_commands
    from .commands import COMMANDS

    prog = f"python -m {__package__}"
    examples = f"{prog} model {COMMANDS['model'].examples[0]}", f"{prog} splits"
    parser = Parser(prog=prog, description=__doc__, examples=examples)
    add_commands(parser, COMMANDS)
    args = parser.parse_args(argv)
    say(COMMANDS[args.command].run(args))


if __name__ == "__main__":
    run(main)

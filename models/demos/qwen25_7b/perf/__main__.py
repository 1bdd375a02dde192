"""Tables of PERF.md: counts, host times, and modeled times of a step and a prompt."""

from models.common.command import quiet_libraries, run, status_of
from models.common.terminal import Progress, say


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _show_table(argv))


def _show_table(argv: list[str] | None) -> None:
    quiet_libraries()
    from models.common.options import Parser, add_commands
    from models.demos.qwen25_7b.perf.commands import COMMANDS

    parser = Parser(
        prog="python -m models.demos.qwen25_7b.perf",
        description=__doc__,
        examples=(*COMMANDS["model"].EXAMPLES[:1], *COMMANDS["splits"].EXAMPLES[:1]),
    )
    add_commands(parser, COMMANDS)
    args = parser.parse_args(argv)
    with Progress(f"perf {args.command}"):
        text = COMMANDS[args.command].table(args)
    say(text)


if __name__ == "__main__":
    run(main)

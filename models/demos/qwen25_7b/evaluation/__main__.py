"""How near a recipe comes to Hugging Face's float32: teacher forcing, ablation, and the tasks of lm-eval."""

from models.common.command import quiet_libraries, run, status_of


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _run_command(argv))


def _run_command(argv: list[str] | None) -> None:
    quiet_libraries()
    from models.common.options import Parser
    from models.demos.qwen25_7b.evaluation.commands import COMMANDS

    parser = Parser(prog="python -m models.demos.qwen25_7b.evaluation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar=f"{{{','.join(COMMANDS)}}}")
    for name, command in COMMANDS.items():
        line = command.__doc__.splitlines()[0]
        command.add_options(commands.add_parser(name, help=line, description=line))
    args = parser.parse_args(argv)
    COMMANDS[args.command].run(args)


if __name__ == "__main__":
    run(main)

"""A recipe's distance from Hugging Face's float32: teacher forcing, tt-metal's readiness check, lm-eval's tasks."""

from ..cli.command import quiet_libraries, run


def main(argv: list[str] | None = None) -> None:
    quiet_libraries()
    from ..cli.options import Parser, add_commands
    from .eval import EvalCommand
    from .readiness import ReadinessCommand
    from .tasks import TasksCommand

    commands = {"eval": EvalCommand, "readiness": ReadinessCommand, "tasks": TasksCommand}
    parser = Parser(
        prog=f"python -m {__package__}",
        description=__doc__,
        examples=(*EvalCommand.EXAMPLES[:1], *TasksCommand.EXAMPLES[:1]),
    )
    add_commands(parser, commands)
    args = parser.parse_args(argv)
    commands[args.command].run(args)


if __name__ == "__main__":
    run(main)

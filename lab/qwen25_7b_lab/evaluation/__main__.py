"""A recipe's distance from Hugging Face's float32: teacher forcing, tt-metal's readiness check, lm-eval's tasks."""

from models.demos.qwen25_7b.cli.command import quiet_libraries, run


def main(argv: list[str] | None = None) -> None:
    quiet_libraries()
    from models.demos.qwen25_7b.cli.options import Parser

    from ..options import add_commands
    from .eval import EVAL
    from .readiness import READINESS
    from .tasks import TASKS

    commands = {"eval": EVAL, "readiness": READINESS, "tasks": TASKS}
    prog = f"python -m {__package__}"
    examples = f"{prog} eval {EVAL.examples[0]}", f"{prog} tasks {TASKS.examples[0]}"
    parser = Parser(prog=prog, description=__doc__, examples=examples)
    add_commands(parser, commands)
    args = parser.parse_args(argv)
    commands[args.command].run(args)


if __name__ == "__main__":
    run(main)

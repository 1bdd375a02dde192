"""A recipe's distance from Hugging Face's float32: teacher forcing, ablation, lm-eval's tasks."""

from models.common.command import quiet_libraries, run, status_of


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _run_command(argv))


def _run_command(argv: list[str] | None) -> None:
    quiet_libraries()
    from models.common.options import Parser, add_commands
    from models.common.terminal import Progress

    with Progress("loading torch and transformers"):
        from models.demos.qwen25_7b.evaluation.attention_by_position import AttentionCommand
        from models.demos.qwen25_7b.evaluation.parity import ParityCommand
        from models.demos.qwen25_7b.evaluation.recipes import AblateCommand, EvalCommand
        from models.demos.qwen25_7b.evaluation.reference import ReferenceCommand
        from models.demos.qwen25_7b.evaluation.smollm2 import SmolLM2Command
        from models.demos.qwen25_7b.evaluation.tasks import TasksCommand

    commands = {
        "eval": EvalCommand,
        "ablate": AblateCommand,
        "attention-by-position": AttentionCommand,
        "reference": ReferenceCommand,
        "tasks": TasksCommand,
        "parity": ParityCommand,
        "smollm2": SmolLM2Command,
    }
    parser = Parser(
        prog="python -m models.demos.qwen25_7b.evaluation",
        description=__doc__,
        examples=(*EvalCommand.EXAMPLES[:1], *TasksCommand.EXAMPLES[:1]),
    )
    add_commands(parser, commands)
    args = parser.parse_args(argv)
    commands[args.command].run(args)


if __name__ == "__main__":
    run(main)

"""The small checkpoint's score on each kind of question, in float32 and in bfloat16.

    python -m models.demos.qwen25_7b.reference.measure_small [--checkpoint DIR]

An answer is right if each of its tokens, and the stop token, is the model's first choice. Three runs are
compared: float32, bfloat16 with sdpa, and bfloat16 with eager attention. Eager attention also rounds the
scores and their softmax. All three use the file's bfloat16 weights.
"""

from models.common.command import quiet_libraries, run, status_of


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _measure(argv))


def _measure(argv: list[str] | None) -> None:
    quiet_libraries()
    from models.common.errors import UserError
    from models.common.options import Parser
    from models.common.terminal import Progress
    from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT

    parser = Parser(
        prog="python -m models.demos.qwen25_7b.reference.measure_small",
        description=__doc__.splitlines()[0],
        examples=(
            "python -m models.demos.qwen25_7b.reference.measure_small",
            "python -m models.demos.qwen25_7b.reference.measure_small --checkpoint DIR --each 20",
        ),
    )
    parser.add_argument(
        "--checkpoint", default=SMALL_CHECKPOINT, help="directory (default: the small checkpoint's)"
    )
    parser.add_argument(
        "--each", type=int, default=100, help="questions of each kind (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    if args.each < 1:
        raise UserError(f"--each must be 1 or more, got {args.each}")

    with Progress("loading torch and transformers"):
        from models.demos.qwen25_7b.reference.answers import show_answers
        from models.demos.qwen25_7b.serving.tokenizer import ChatTokenizer
        from models.demos.qwen25_7b.weights import Checkpoint

    directory = Checkpoint.open(args.checkpoint).directory
    show_answers(directory, ChatTokenizer(directory, instruct=False).hf, args.each)


if __name__ == "__main__":
    run(main)

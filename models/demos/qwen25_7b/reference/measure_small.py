"""What the small checkpoint knows, and whether bfloat16 changes its mind.

    python -m models.demos.qwen25_7b.reference.measure_small [--checkpoint DIR]

An answer counts as right if every token of it, and the stop token after it, is the model's first choice. Three
runs are compared: float32, bfloat16 with sdpa, and bfloat16 with eager attention, which also rounds the scores and
their softmax. All three use the bfloat16 weights of the file.
"""

from models.common.command import quiet_libraries, run, status_of


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _measure(argv))


def _measure(argv: list[str] | None) -> None:
    quiet_libraries()
    from models.common.errors import UserError
    from models.common.options import Parser
    from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT

    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", default=SMALL_CHECKPOINT, help="directory (default: the small checkpoint's)")
    parser.add_argument("--each", type=int, default=100, help="questions of each kind (default: %(default)s)")
    args = parser.parse_args(argv)
    if args.each < 1:
        raise UserError(f"--each must be 1 or more, got {args.each}")

    from models.demos.qwen25_7b.reference.answers import show_answers
    from models.demos.qwen25_7b.serving.text import Text
    from models.demos.qwen25_7b.weights import Checkpoint

    directory = Checkpoint.open(args.checkpoint).directory  # which checks what transformers would trip over
    show_answers(directory, Text(directory, instruct=False).tokenizer, args.each)


if __name__ == "__main__":
    run(main)

"""Round a checkpoint's MLP to a recipe's 4 bits (bfloat4_b), with little change of its answers.

    python -m qwen25_7b_lab.quantize --model DIR --calibration FILE --out DIR

The result is a checkpoint for any loader. Run it with the same recipe, whose formats hold the new gate, up and down
exactly. The same command resumes a run that was stopped.
"""

from pathlib import Path

from models.demos.qwen25_7b.cli.command import quiet_libraries, run


def main(argv: list[str] | None = None) -> None:
    quiet_libraries()
    from models.demos.qwen25_7b.cli.options import Parser, add_recipe, number, path
    from models.demos.qwen25_7b.cli.terminal import say
    from models.demos.qwen25_7b.config.recipe import PERFORMANCE

    parser = Parser(
        prog=f"python -m {__package__}",
        description=__doc__.splitlines()[0],
        examples=(
            f"python -m {__package__} --model DIR --calibration text.txt --out DIR-4bit",
            f"python -m {__package__} --model DIR --calibration text.txt --recipe mine.json --out DIR-mine",
            f"python -m {__package__} --model smollm2 --out smollm2-4bit",
        ),
    )
    option = parser.add_argument
    option("--model", required=True, help='directory, hub id or "smollm2"')
    text = (
        "UTF-8 text of the kind that the model will be used for (default: the model writes it to OUT.txt, on the host)"
    )
    option("--calibration", type=path, help=text)
    option("--out", type=path, required=True, help="directory to write the new checkpoint to")
    add_recipe(parser, default=PERFORMANCE.name)
    tokens = "tokens of the calibration text at most; memory and time grow with them (default: %(default)s)"
    option("--tokens", default=24576, help=tokens, **number())
    steps = "steps of learned rounding in a layer, 0 for none; time grows with them (default: %(default)s)"
    option("--steps", default=60, help=steps, **number(0))
    args = parser.parse_args(argv)
    from ..evaluation.model import EvaluatedModel
    from .output import check_resumable
    from .quantizer import quantize

    checkpoint = EvaluatedModel.open(args.model).checkpoint
    check_resumable(args.out)
    calibration = args.calibration or _own_text(checkpoint.directory, args.out)
    quantize(checkpoint, calibration, args.out, args.recipe, args.tokens, args.steps)
    say(f"{args.out}: the MLP in the formats of {args.recipe.name}")


def _own_text(model: Path, out: Path) -> Path:
    """The text that the model wrote beside `out`. A resumed run finds it again."""
    from models.demos.qwen25_7b.cli.terminal import complain
    from models.demos.qwen25_7b.files import check_output, write_text

    from .calibration import calibration_text

    file = Path(f"{out.resolve()}.txt")
    if not file.exists():
        check_output("--out", file)
        complain(f"the model writes the calibration text {file}")
        write_text(file, calibration_text(model))
    return file


if __name__ == "__main__":
    run(main)

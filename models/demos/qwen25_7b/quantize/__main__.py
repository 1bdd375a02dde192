"""Round a checkpoint's MLP to a recipe's 4 bits (bfloat4_b), with little change of its answers.

    python -m models.demos.qwen25_7b.quantize --model DIR --calibration FILE --out DIR

The result is a checkpoint for any loader. Run it with the same recipe, whose formats hold the new gate, up and down exactly.
The same command resumes a run that was stopped.
"""

import argparse

from models.common.command import quiet_libraries, run, status_of


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _quantize(argv))


def _quantize(argv: list[str] | None) -> None:
    quiet_libraries()
    from models.common.options import Parser
    from models.common.terminal import Progress, say
    from models.demos.qwen25_7b.quantize.options import check_effort

    parser = Parser(
        prog="python -m models.demos.qwen25_7b.quantize",
        description=__doc__.splitlines()[0],
        examples=(
            "python -m models.demos.qwen25_7b.quantize --model DIR --calibration text.txt --out DIR-4bit",
            "python -m models.demos.qwen25_7b.quantize --model DIR --calibration text.txt --recipe mine.json --out DIR-mine",
        ),
    )
    _add_options(parser)
    args = parser.parse_args(argv)
    check_effort(args)
    with Progress("loading torch and transformers"):
        from models.demos.qwen25_7b.quantize.quantizer import quantize

    with Progress("layers", "layers") as progress:
        quantize(
            args.model,
            args.calibration,
            args.out,
            args.recipe,
            args.tokens,
            progress,
            steps=args.steps,
        )
    say(f"{args.out}: the MLP in the formats of {args.recipe}")


def _add_options(parser: argparse.ArgumentParser) -> None:
    from models.common.options import path
    from models.demos.qwen25_7b.config.recipe import PERFORMANCE
    from models.demos.qwen25_7b.config.recipe_file import add_recipe
    from models.demos.qwen25_7b.quantize.options import add_effort

    option = parser.add_argument
    option("--model", required=True, help="directory or hub id of the checkpoint")
    option(
        "--calibration",
        type=path("--calibration"),
        required=True,
        help="UTF-8 text of the kind that the model will be used for",
    )
    option(
        "--out", type=path("--out"), required=True, help="directory to write the new checkpoint to"
    )
    add_recipe(parser, default=PERFORMANCE.name)
    add_effort(parser)


if __name__ == "__main__":
    run(main)

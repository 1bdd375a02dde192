"""Rotate a checkpoint's residual stream: an option for bfp8, to be judged by `compare`. Other recipes gain nothing or lose.

    python -m models.demos.qwen25_7b.quantize.rotate --model DIR --out DIR

The result is a checkpoint of the same model in float32: norm weights of 1, an LM head of its own. Any loader reads it, and
`quantize` takes it as its --model. The LM head and down suit bfloat8_b better, attention suits it less (docs/numerics.md).
"""

from models.common.command import quiet_libraries, run, status_of


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _rotate(argv))


def _rotate(argv: list[str] | None) -> None:
    quiet_libraries()
    from models.common.options import Parser, path
    from models.common.terminal import Progress, say

    parser = Parser(
        prog="python -m models.demos.qwen25_7b.quantize.rotate",
        description=__doc__.splitlines()[0],
        examples=(
            "python -m models.demos.qwen25_7b.quantize.rotate --model DIR --out DIR-rotated",
            "python -m models.demos.qwen25_7b.quantize --model DIR-rotated --calibration text.txt --out DIR-4bit",
        ),
    )
    parser.add_argument("--model", required=True, help="directory or hub id of the checkpoint")
    parser.add_argument(
        "--out",
        type=path("--out"),
        required=True,
        help="directory to write the new checkpoint to, in float32: 4 bytes a weight",
    )
    args = parser.parse_args(argv)
    with Progress("loading torch"):
        from models.demos.qwen25_7b.quantize.rotated_checkpoint import write_rotated

    with Progress("files", "files") as progress:
        write_rotated(args.model, args.out, progress)
    say(f"{args.out}: the same model, with its residual stream rotated")


if __name__ == "__main__":
    run(main)

"""Round a checkpoint's gate and up to 4 bits (bfloat4_b) so that its answers stay.

    python -m models.demos.qwen25_7b.quantize --model DIR --calibration FILE --out DIR

The result is a checkpoint like any other. Run it with a recipe whose mlp_in is bfloat4_b: the format holds its gate
and up exactly, as bfloat8_b holds its down. A run that was stopped goes on where it was when it is started again.
"""

from pathlib import Path

from models.common.command import quiet_libraries, run, status_of


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _quantise(argv))


def _quantise(argv: list[str] | None) -> None:
    quiet_libraries()
    from models.common.errors import UserError
    from models.common.options import Parser
    from models.common.terminal import say

    parser = Parser(prog="python -m models.demos.qwen25_7b.quantize", description=__doc__.splitlines()[0])
    option = parser.add_argument
    option("--model", required=True, help="directory or hub id of the checkpoint")
    option("--calibration", type=Path, required=True, help="text of the kind that the model will be used for, UTF-8")
    option("--out", type=Path, required=True, help="directory to write the new checkpoint to")
    option("--groups", default="gate,up", help="what is rounded to 4 bits, of gate,up,down (default: %(default)s)")
    option(
        "--tokens", type=int, default=6144, help="of the text, at most: memory grows with them (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    if args.tokens < 1:
        raise UserError(f"--tokens must be 1 or more, got {args.tokens}")
    groups = sorted(set(args.groups.split(",")))
    if not set(groups) <= {"gate", "up", "down"}:
        raise UserError(f"--groups must be some of gate,up,down, got {args.groups!r}")

    from models.demos.qwen25_7b.demo.report import Bar
    from models.demos.qwen25_7b.quantize.run import quantise

    with Bar("layers", "layers") as bar:
        quantise(args.model, args.calibration, args.out, groups, args.tokens, bar)
    say(f"{args.out}: {', '.join(groups)} in bfloat4_b, the rest of the MLP in bfloat8_b")


if __name__ == "__main__":
    run(main)

"""The command `attention-by-position`: the error of attention alone at the 7B's dims, with and without each rounding."""

import argparse
from typing import Sequence

from models.common.errors import UserError
from models.common.markdown import markdown
from models.common.terminal import Progress, say
from models.demos.qwen25_7b.evaluation.by_position import bucket_ends

POSITIONS = "128,512,2048,8192,32768"


class AttentionCommand:
    """The error of attention at the 7B's dims against float64, by position, with and without each rounding."""

    EXAMPLES = ("python -m models.demos.qwen25_7b.evaluation attention-by-position",)

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--positions",
            default=bucket_ends(POSITIONS),
            type=bucket_ends,
            metavar="ENDS",
            help=f"tokens that the last query sees, comma-separated (default: {POSITIONS})",
        )
        parser.add_argument(
            "--draws", type=int, default=1, metavar="N", help="of random inputs (default: 1)"
        )

    @staticmethod
    def run(args: argparse.Namespace) -> None:
        with Progress("loading ttnn"):
            from models.demos.qwen25_7b.evaluation import attention_error as error

        if args.draws < 1:
            raise UserError(f"--draws must be 1 or more, got {args.draws}")
        if args.positions[0] < error.ROWS:
            raise UserError(f"--positions must be {error.ROWS} or more, got {args.positions[0]}")
        say(
            f"Attention alone: {error.HEADS} query and {error.KV_HEADS} KV heads of {error.DIM}, random inputs, draws: {args.draws}. "
            "The golden mesh's arithmetic against float64. In each cell: relative error in percent, gain."
        )
        for keys in error.KEYS:
            errors = {}
            for tokens in args.positions:
                with Progress(f"{keys}, {tokens} tokens"):
                    errors[tokens] = error.measure(keys, tokens, args.draws)
            say(f"\nKeys: {keys}\n")
            header = ("", "variant", *map(str, args.positions))
            say(markdown(header, _rows(list(errors.values())), aligned=True))


def _rows(errors: Sequence[dict]) -> list[tuple[str, ...]]:
    """errors: of each position, by name of the case and the variant."""
    return [
        (*names, *(f"{100 * of[names].relative:.2f}, {of[names].gain:.4f}" for of in errors))
        for names in errors[0]
    ]

"""Options of the commands that round weights: how much text, and how long."""

import argparse

from models.common.errors import UserError

TOKENS = 24576
STEPS = 60


def add_effort(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokens",
        type=int,
        default=TOKENS,
        help="tokens of the calibration text at most; memory and time grow with them (default: %(default)s)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=STEPS,
        help="steps of learned rounding in a layer, 0 for none; time grows with them (default: %(default)s)",
    )


def check_effort(args: argparse.Namespace) -> None:
    """UserError: a number is too small."""
    for name, least in ("tokens", 1), ("steps", 0):
        if getattr(args, name) < least:
            raise UserError(f"--{name} must be {least} or more, got {getattr(args, name)}")

"""Options that the commands share."""

import argparse

from models.common.errors import UserError
from models.common.mesh import check_tp, machine
from models.common.options import add_machine
from models.demos.qwen25_7b.config import MAX_USERS, QWEN25_7B
from models.demos.qwen25_7b.config.options import add_recipe


def add_split(parser: argparse.ArgumentParser) -> None:
    """A machine, and how a replica of the model runs on it."""
    add_machine(parser)
    parser.add_argument("--tp", type=int, help="chips that share a replica of the model (default: all of the mesh)")
    parser.add_argument(
        "--batch", type=int, default=MAX_USERS, help=f"users a replica, 1 to {MAX_USERS} (default: {MAX_USERS})"
    )
    add_recipe(parser)
    parser.add_argument("--worker-dispatch", action="store_true", help="a grid of 8x7 instead of 8x8")


def check_machine(args: argparse.Namespace) -> None:
    """UserError unless the machine is known."""
    args.mesh = machine(args.mesh).name


def add_prefill(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prefill", type=int, help="a prompt of so many tokens instead of a decode step")


def check_split(args: argparse.Namespace) -> None:
    """UserError unless the options are possible; sets args.tp where it was not given."""
    check_machine(args)
    args.tp = machine(args.mesh).chips if args.tp is None else args.tp
    check_tp(args.mesh, args.tp)
    if not 1 <= args.batch <= MAX_USERS:
        raise UserError(f"--batch must be 1 to {MAX_USERS} users a replica, got {args.batch}")
    args.recipe.check_layers(QWEN25_7B.num_hidden_layers)
    prefill = getattr(args, "prefill", None)
    if prefill is not None and not 1 <= prefill <= QWEN25_7B.context:
        raise UserError(f"--prefill must be 1 to {QWEN25_7B.context} tokens, got {prefill}")
    last = QWEN25_7B.context - 1
    if not 0 <= getattr(args, "position", 0) <= last:
        raise UserError(f"--position must be 0 to {last}, got {args.position}")

"""What perf_ops and perf_model are told on the command line; a wrong option is one line and status 2."""

import argparse
from typing import Callable, NoReturn

from models.common.command import status_of
from models.common.errors import UserError
from models.common.mesh import MACHINES, check_tp, machine
from models.demos.qwen25_7b.config import QWEN25_7B, RECIPES

MAX_USERS = 32


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def parser(description: str) -> Parser:
    options = Parser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    options.add_argument("--mesh", default="N300", help=", ".join(MACHINES))
    options.add_argument("--tp", type=int, help="chips that share a replica of the model; default: all of the mesh")
    options.add_argument("--batch", type=int, default=MAX_USERS, help=f"users a replica, 1 to {MAX_USERS}")
    options.add_argument("--recipe", default="bfp8", help=", ".join(sorted(RECIPES)))
    options.add_argument("--backend", default="auto", help="what is below ttnn: auto, device or golden")
    options.add_argument("--worker-dispatch", action="store_true", help="a grid of 8x7 instead of 8x8")
    return options


def check(args: argparse.Namespace) -> None:
    """UserError unless the options are possible; sets args.tp where it was not given."""
    kind = machine(args.mesh)
    args.mesh, args.tp = kind.name, kind.chips if args.tp is None else args.tp
    check_tp(kind.name, args.tp)
    if not 1 <= args.batch <= MAX_USERS:
        raise UserError(f"--batch must be 1 to {MAX_USERS} users a replica, got {args.batch}")
    if args.recipe not in RECIPES:
        raise UserError(f"--recipe knows {', '.join(sorted(RECIPES))}; got {args.recipe!r}")
    if args.backend not in ("auto", "device", "golden"):
        raise UserError(f"--backend knows auto, device, golden; got {args.backend!r}")
    last = QWEN25_7B.max_position_embeddings - 1
    if not 0 <= getattr(args, "position", 0) <= last:
        raise UserError(f"--position must be 0 to {last}, got {args.position}")


def run(command: Callable[[argparse.Namespace], str], options: Parser, argv: list[str] | None) -> int:
    """Print what the command returns; the status."""

    def checked() -> None:
        args = options.parse_args(argv)
        check(args)
        print(command(args))

    return status_of(checked)

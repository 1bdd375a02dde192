"""What command lines have in common."""

import argparse
from typing import NoReturn

from models.common.errors import UserError
from models.common.mesh import MACHINES
from models.common.terminal import say


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as all our errors are said."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (--help shows the options)")

    def print_help(self, file=None) -> None:
        say(self.format_help(), end="")


def add_machine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mesh", default="N300", help=f"{', '.join(MACHINES)} (default: %(default)s)")
    parser.add_argument(
        "--backend",
        default="auto",
        choices=("auto", "device", "golden"),
        help="what is below ttnn (default: %(default)s)",
    )

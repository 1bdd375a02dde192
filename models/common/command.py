"""How every program of this repository is run from the command line."""

import argparse
import os
import sys
from typing import Callable, NoReturn

from models.common.errors import UserError

QUIET = {"TT_LOGGER_LEVEL": "fatal", "LOGURU_LEVEL": "ERROR", "TRANSFORMERS_VERBOSITY": "error"}


class Parser(argparse.ArgumentParser):
    """A wrong option is what a user can mend, as everything else: one line and status 2."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def status_of(command: Callable[[], None], *, verbose: bool = False) -> int:
    """Run it; what a user can mend becomes one line on stderr and status 2. verbose: let the libraries log."""
    if not verbose:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
    try:
        command()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0

"""The command line of golden-mesh replay. It loads neither torch nor ttnn, so a mistake is answered at once."""

import argparse
from pathlib import Path
from typing import NoReturn, Sequence


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """file, calls and json. A mistake is one line and exit status 2."""
    parser = _Parser(
        prog="golden-mesh replay",
        description="Runs the operations of a record on whatever ttnn opens, and prints values and times beside it.",
    )
    parser.add_argument("file", type=Path, help="of golden-mesh record")
    parser.add_argument(
        "--calls",
        type=int,
        default=20,
        help="of the shorter trace; 0: no times (default: %(default)s)",
    )
    parser.add_argument(
        "--json", type=Path, help="a file for the rows, one a line, written as they come"
    )
    given = parser.parse_args(arguments)
    if not given.file.is_file():
        parser.error(f"there is no record {given.file}")
    if given.calls < 0:
        parser.error(f"--calls is 0 or more, got {given.calls}")
    if given.json and (given.json.is_dir() or not given.json.parent.is_dir()):
        parser.error(f"--json: {given.json} cannot be written: name a file in a folder that exists")
    if given.json and given.json.exists() and given.json.samefile(given.file):
        parser.error(f"--json: {given.json} is the record: name another file")
    return given

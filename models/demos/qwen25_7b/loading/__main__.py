"""The tile cache, listed, verified and pruned."""

import argparse
import os
import sys
from pathlib import Path

from models.common.command import status_of
from models.demos.qwen25_7b.loading.commands import listing, prune, verify
from models.demos.qwen25_7b.loading.place import CacheError, check_owner, default_root

COMMANDS = {"list": listing, "verify": verify, "prune": prune}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m models.demos.qwen25_7b.loading", description=__doc__)
    parser.add_argument("--cache", type=Path, default=default_root(), help=f"its place (default: {default_root()})")
    commands = parser.add_subparsers(dest="command", required=True, metavar=f"{{{','.join(COMMANDS)}}}")
    for name, command in COMMANDS.items():
        command.add_options(commands.add_parser(name, help=command.__doc__, description=command.__doc__))
    args = parser.parse_args(argv)
    return status_of(lambda: _run(args))


def _run(args: argparse.Namespace) -> None:
    args.cache = Path(os.path.abspath(args.cache))
    if not args.cache.is_dir():
        raise CacheError(f"{args.cache}: there is no cache")
    check_owner(args.cache)
    try:
        COMMANDS[args.command].run(args)
    except OSError as error:
        raise CacheError(f"{error.filename}: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())

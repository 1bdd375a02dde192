"""The tile cache, listed, verified and pruned."""

from models.common.command import run, status_of


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _do(argv))


def _do(argv: list[str] | None) -> None:
    import os
    from pathlib import Path

    from models.common.options import Parser
    from models.demos.qwen25_7b.loading.commands import COMMANDS
    from models.demos.qwen25_7b.loading.place import CacheError, check_owner, default_root

    parser = Parser(prog="python -m models.demos.qwen25_7b.loading", description=__doc__)
    parser.add_argument("--cache", type=Path, default=default_root(), help="its place (default: %(default)s)")
    commands = parser.add_subparsers(dest="command", required=True, metavar=f"{{{','.join(COMMANDS)}}}")
    for name, command in COMMANDS.items():
        command.add_options(commands.add_parser(name, help=command.__doc__, description=command.__doc__))
    args = parser.parse_args(argv)
    args.cache = Path(os.path.abspath(args.cache))
    if not args.cache.is_dir():
        raise CacheError(f"{args.cache}: there is no cache")
    check_owner(args.cache)
    try:
        COMMANDS[args.command].execute(args)
    except OSError as error:
        raise CacheError(f"{error.filename}: {error.strerror}") from error


if __name__ == "__main__":
    run(main)

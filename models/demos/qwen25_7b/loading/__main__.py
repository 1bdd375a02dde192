"""List, verify and prune the tile cache."""

from models.common.command import run, status_of

MODULE = "models.demos.qwen25_7b.loading"
LOADING = f"python -m {MODULE}"
EXAMPLES = {
    "list": (f"{LOADING} list", f"{LOADING} --cache DIR list"),
    "verify": (f"{LOADING} verify", f"{LOADING} --cache DIR verify"),
    "prune": (
        f"{LOADING} prune --model checkpoints/Qwen2.5-7B-Instruct",
        f"{LOADING} --cache DIR prune --all",
    ),
}


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _execute(argv))


def _execute(argv: list[str] | None) -> None:
    import os
    from pathlib import Path

    from models.common.cache_directory import CacheError
    from models.common.options import Parser, path
    from models.demos.qwen25_7b.loading import default_root
    from models.demos.qwen25_7b.loading.commands import COMMANDS
    from models.demos.qwen25_7b.loading.tiles import KIND

    parser = Parser(
        prog=f"python -m {MODULE}",
        description=__doc__,
        examples=(EXAMPLES["list"][0], EXAMPLES["prune"][0]),
    )
    parser.add_argument(
        "--cache",
        type=path("--cache"),
        default=default_root(),
        help="the cache's directory (default: %(default)s)",
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar=f"{{{','.join(COMMANDS)}}}"
    )
    for name, command in COMMANDS.items():
        text = (command.__doc__ or name).splitlines()[0]  # python -OO leaves no docstrings
        command_parser = commands.add_parser(
            name, help=text, description=text, examples=EXAMPLES[name]
        )
        if name == "prune":
            target = command_parser.add_mutually_exclusive_group()
            target.add_argument(
                "--model", type=path("--model"), help="also forget this checkpoint directory"
            )
            target.add_argument("--all", action="store_true", help="remove all tiles and records")
    args = parser.parse_args(argv)
    args.cache = Path(os.path.abspath(args.cache))
    KIND.check(args.cache)
    try:
        COMMANDS[args.command](args)
    except OSError as error:
        raise CacheError(f"{error.filename or args.cache}: {error.strerror}") from error


if __name__ == "__main__":
    run(main)
